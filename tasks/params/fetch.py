"""The section `fetch` of params.yaml: sources that `cloze fetch` downloads into data/. No stage depends on it."""

from __future__ import annotations

import itertools
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from model.common.bounds import NUMBER, Count, FilePath, ItemBytes, Line, Name
from model.common.config_base import Settings
from model.common.errors import UserError

MEBIBYTE = 1 << 20
RECORD = "FETCHED.json"  # in data/; see tasks/fetch/fetch_sources.py
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class FetchSource(Settings):
    """Settings of every source type."""

    name: Name
    """Name of the source on the command line and in the record."""
    kind: str
    """dataset or model (of the Hugging Face hub), s3, https or local."""
    to: FilePath
    """Target relative to data/: a folder used only by this source, or a file if the source is one file."""

    @field_validator("to")
    @classmethod
    def _target_lies_in_data(cls, to: str) -> str:
        return check_target(to, "a fetch source's `to`")

    @property
    def pinned(self) -> bool:
        """True if the settings alone determine the content."""
        return True

    @property
    def pins(self) -> dict[str, str]:
        """Revision and digests that determine the content, by name; empty if it is not pinned."""
        given = {name: getattr(self, name, "") for name in ("revision", "sha256", "sha1")}
        return {name: value for name, value in given.items() if isinstance(value, str) and value}


MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "tokenizer_config.json")


class HubSource(FetchSource):
    """Settings of both kinds of repositories on the Hugging Face hub."""

    repo: Line = Field(pattern=r"^[\w.-]+(/[\w.-]+)?$")
    """Name of the repository, for example wikimedia/wikipedia or google-bert/bert-base-uncased."""
    revision: str = ""
    """Commit hash, 40 hexadecimal digits. For a branch, the error message names its current commit."""
    files: tuple[str, ...] = ()
    """Patterns of the files to fetch. Empty fetches, of a dataset, the files of its configuration's split, and of a
    model, the weights (safetensors), the configuration and the tokenizer."""

    @property
    def shown(self) -> str:
        return f"hub:{self.repo}"


class DatasetSource(HubSource):
    """A dataset of the hub at a pinned revision: original files, or selected columns and rows as Parquet."""

    kind: Literal["dataset"]
    config: str | None = None
    """A configuration of the dataset, for example 20231101.en; null uses its default."""
    split: str = "train"
    """A split of the dataset."""
    columns: tuple[str, ...] = ()
    """Keep only these columns (streamed, written as Parquet); empty keeps the original files."""
    max_rows: Count | None = None
    """Keep only the first rows, up to this number (streamed, written as Parquet); null keeps all."""

    @property
    def shown(self) -> str:
        if self.files:
            return super().shown
        return f"hub:{self.repo}" + (f"/{self.config}" if self.config else "") + f":{self.split}"


class ModelSource(HubSource):
    """A model of the hub at a pinned revision, to fine-tune it or to continue from it."""

    kind: Literal["model"]


class S3Source(FetchSource):
    """An object, or all objects below a prefix. Credentials come only from the AWS variables and files."""

    kind: Literal["s3"]
    url: Line = Field(pattern=r"^s3://[^/?#@\s]+/")
    """s3://bucket/key for an object, or s3://bucket/prefix/ (with a trailing slash) for all objects below it."""
    include: str = "*"
    """Fetch only objects whose name below the prefix matches this pattern (* also matches slashes)."""
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of a single object; by default, the checksum that S3 stores is used."""
    endpoint_url: Line | None = None
    """Endpoint of an S3-compatible service; AWS_ENDPOINT_URL has the same effect."""
    part_bytes: Annotated[int, Field(ge=64 * 1024, le=1024 * MEBIBYTE), NUMBER] = 16 * MEBIBYTE
    """Size of the ranges in which objects are read."""
    num_connections: Annotated[int, Field(ge=1, le=64), NUMBER] = 8
    """Number of ranges to read concurrently."""

    @model_validator(mode="after")
    def _addresses_fit(self) -> S3Source:
        if self.endpoint_url is not None:
            check_address(self.endpoint_url, self.name, ("https", "http"))
        if self.sha256 and self.is_prefix:
            raise UserError(f"fetch source '{self.name}': sha256 applies to one object, not a prefix")
        return self

    @property
    def is_prefix(self) -> bool:
        return self.url.endswith("/")

    @property
    def shown(self) -> str:
        return self.url

    @property
    def pinned(self) -> bool:
        """Return True if a digest is set, since objects can change."""
        return bool(self.sha256)


class HttpsSource(FetchSource):
    """A file on a web server, with its expected digest."""

    kind: Literal["https"]
    url: Line
    """URL that starts with https://; http:// is accepted only for localhost."""
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """The file's digest; required, unless sha1 is given."""
    sha1: str = Field(default="", pattern=r"^([0-9a-f]{40})?$")
    """SHA-1 digest, for publishers without SHA-256 (dumps.wikimedia.org has sha1sums.txt)."""
    unpack: bool = False
    """Unpack the file, a .zip or .tar archive, into the folder `to`."""

    @model_validator(mode="after")
    def _is_checkable(self) -> HttpsSource:
        check_address(self.url, self.name, ("https",))
        if not (self.sha256 or self.sha1):
            raise UserError(
                f"fetch source '{self.name}': sha256 is missing; set it to the publisher's digest"
                " (or sha1, as dumps.wikimedia.org does)"
            )
        return self

    @property
    def shown(self) -> str:
        """Return the URL without its query, which may contain a token."""
        return self.url.partition("?")[0]


class LocalSource(FetchSource):
    """A folder, a file, or a .zip or .tar archive on this machine; archives are unpacked."""

    kind: Literal["local"]
    path: FilePath = Field(min_length=1)
    """Absolute, or relative to the project."""

    @property
    def shown(self) -> str:
        return self.path

    @property
    def pinned(self) -> bool:
        return False


AnyFetchSource = Annotated[
    DatasetSource | ModelSource | S3Source | HttpsSource | LocalSource, Field(discriminator="kind")
]


class FetchSettings(Settings):
    """The section `fetch` of params.yaml."""

    sources: tuple[AnyFetchSource, ...] = Field((), max_length=200)
    """Sources to download, in this order."""
    attempts: Annotated[int, Field(ge=1, le=100), NUMBER] = 6
    """Give up on a server after so many consecutive failures without progress."""
    wait_seconds: Annotated[float, Field(ge=0, le=60), NUMBER] = 1.0
    """Wait after the first failure; doubles with each further failure, up to a minute."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600), NUMBER] = 60.0
    """Timeout after which a silent server counts as failed."""
    max_unpacked_bytes: ItemBytes = 64 * 1024 * MEBIBYTE
    """Maximum unpacked size of an archive; a larger one is an error."""

    @property
    def models(self) -> dict[str, str]:
        """The directory below data/ of each model of the hub."""
        return {one.repo: one.to for one in self.sources if isinstance(one, ModelSource)}

    @field_validator("sources", mode="before")
    @classmethod
    def _accept_former_keys(cls, sources: Any) -> Any:
        return [_with_kind(source) for source in sources] if isinstance(sources, list | tuple) else sources

    @model_validator(mode="after")
    def _sources_are_apart(self) -> FetchSettings:
        for one, other in itertools.combinations(self.sources, 2):
            if one.name == other.name:
                raise UserError(f"two fetch sources are named '{one.name}'")
            first, second = PurePosixPath(one.to), PurePosixPath(other.to)
            if first.is_relative_to(second) or second.is_relative_to(first):
                raise UserError(
                    f"fetch sources '{one.name}' and '{other.name}' have the same target "
                    f"({one.to}, {other.to}); use a separate folder for each"
                )
        return self


def _with_kind(source: Any) -> Any:
    """Rename the keys of earlier releases: `door: hub` with `dataset` or `model`, and `door` of the other kinds."""
    if not isinstance(source, dict) or "door" not in source:
        return source
    kind = "model" if source["door"] == "hub" and "model" in source else source["door"]
    kind = "dataset" if kind == "hub" else kind
    renamed = {"door": "kind", kind: "repo"} if source["door"] == "hub" else {"door": "kind"}
    return {renamed.get(key, key): kind if key == "door" else value for key, value in source.items()}


def check_target(to: str, what: str) -> str:
    """Normalize a target.

    Raises:
        UserError: it is absolute, is outside data/, or is hidden.
    """
    path = PurePosixPath(to)
    hidden = any(part.startswith(".") for part in path.parts)
    if not path.parts or path.is_absolute() or hidden or "\\" in to or "\0" in to or path.name == RECORD:
        raise UserError(f"{what}: expected a path below data/ such as wikipedia/en, got '{to}'")
    return path.as_posix()


def check_address(url: str, name: str, schemes: tuple[str, ...]) -> None:
    """Check that an address is a valid, encrypted URL without a password.

    Raises:
        UserError: the address is not.
    """
    parts = urlsplit(url)
    what = f"fetch source '{name}'"
    if parts.username is not None or parts.password is not None:
        raise UserError(f"{what}: an address must not contain a user or password; put them into ~/.netrc")
    try:
        parts.port  # noqa: B018 (raises)
    except ValueError as error:
        raise UserError(f"{what}: {error}") from None
    allowed = (*schemes, "http") if parts.hostname in LOOPBACK else schemes
    if parts.scheme not in allowed or not parts.hostname:
        shown = url.partition("?")[0]
        raise UserError(f"{what}: expected an address that starts with {schemes[0]}://, got '{shown}'")
