"""Store cleaned partitions until they are published, in a folder or under an S3 prefix.

The files of a partition are stored first and its record last, each by an atomic rename (S3: one put). A partition with
a record is complete, even if workers are killed. Workers that clean the same partition write identical bytes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from model.common import state_files
from model.common.errors import UserError
from tasks import versions
from tasks.s3.client import S3Client, S3Object
from tasks.s3.shared_objects import retry

_PARTITION_FILE = re.compile(r"[0-9a-f]{16}[.-][^/]+")


class File(TypedDict):
    name: str
    bytes: int
    sha256: str


class PartFile(File):
    """A Parquet file of documents."""

    documents: int


class MatchRecord(TypedDict):
    """Matches of benchmark texts in a partition; written after their file."""

    key: str
    parts: list[PartFile]
    """Always empty; the documents are listed in the PartitionRecord."""
    facts: File


class PartitionRecord(TypedDict):
    """Result of cleaning a partition; written after its files."""

    key: str
    source: str
    label: str
    files: list[str]
    input_bytes: int
    documents: int
    sentences: int
    words: int
    drops: dict[str, int]
    examples: dict[str, list[Any]]
    """Examples of dropped documents by reason; see tasks.corpus.cleaning.DropExamples."""
    repeated: list[tuple[int, str]]
    """(Number of documents, text) of sentences that occur in several documents of the partition."""
    parts: list[PartFile]
    """Parts in order; more than one only if the input had to be read whole."""
    facts: File
    """The document features (tasks.corpus.cleaning) of all parts, one row per document."""


@dataclass(frozen=True)
class FolderPartitionStore:
    """Stores partitions in a folder that all workers can access."""

    folder: Path

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Create a temporary folder on the same disk, for files before they are stored."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=self.folder, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def put(self, path: Path) -> File:
        """Move a file from the scratch folder into the store; `records` detects files damaged by a crash."""
        described = describe(path)
        path.replace(self.folder / path.name)
        return described

    def put_record(self, record: PartitionRecord | MatchRecord) -> None:
        state_files.write_state(self.folder / f"{record['key']}.json", record)

    def records(self, keys: Sequence[str], num_threads: int) -> dict[str, Any]:
        """Read the records with the given keys, and skip records whose files are missing or fail the checksum."""

        def read(key: str) -> Any:
            record = state_files.read_state(self.folder / f"{key}.json")
            return record if record.get("key") == key and all(map(self._is_intact, _files_of(record))) else None

        return _found(read, keys, num_threads)

    def _is_intact(self, file: File) -> bool:
        path = self.folder / file["name"]
        return path.is_file() and describe(path) == file

    @contextlib.contextmanager
    def fetch(self, file: File) -> Iterator[Path]:
        """Yield the path of the stored file; `records` has already verified its checksum."""
        path = self.folder / file["name"]
        if not path.is_file():
            raise UserError(f"{path}: disappeared while the corpus was built; run the command again")
        yield path

    def prune(self, keys: Collection[str]) -> None:
        """Remove the files of all other partitions, and scratch folders left by killed workers."""
        for path in self.folder.iterdir():
            if path.name.startswith(".partial-"):
                shutil.rmtree(path, ignore_errors=True)
            elif _key_of(path.name) not in keys:
                path.unlink()


@dataclass(frozen=True)
class S3PartitionStore:
    """Stores the partitions of one corpus under an S3 prefix, with the interface of FolderPartitionStore."""

    prefix: str
    """s3://bucket/prefix, without a trailing slash."""

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="cloze-") as folder:
            yield Path(folder)

    def put(self, path: Path) -> File:
        location = f"{self.prefix}/{path.name}"

        def upload(client: S3Client) -> None:
            with path.open("rb") as file:
                client.upload(file, location)

        described = describe(path)
        retry(location, upload)
        return described

    def put_record(self, record: PartitionRecord | MatchRecord) -> None:
        location = f"{self.prefix}/{record['key']}.json"
        body = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False).encode()
        retry(location, lambda client: client.write(location, body))

    def records(self, keys: Sequence[str], num_threads: int) -> dict[str, Any]:
        """Read the records with the given keys, and check file sizes; `fetch` verifies checksums."""
        sizes = {entry.location.rsplit("/", 1)[-1]: entry.size for entry in self._list()}

        def read(key: str) -> Any:
            location = f"{self.prefix}/{key}.json"
            if f"{key}.json" not in sizes:
                return None
            try:
                record = json.loads(retry(location, lambda client: client.read(location)))
                is_whole = all(sizes.get(file["name"]) == file["bytes"] for file in _files_of(record))
                return record if is_whole and record["key"] == key else None
            except (ValueError, KeyError, TypeError):
                return None

        return _found(read, keys, 4 * num_threads)

    @contextlib.contextmanager
    def fetch(self, file: File) -> Iterator[Path]:
        """Download the file to a temporary folder for the duration of the context."""
        location = f"{self.prefix}/{file['name']}"
        with self.scratch() as folder:
            path = folder / file["name"]
            retry(location, lambda client: client.download(location, path))
            if describe(path)["sha256"] != file["sha256"]:
                record = f"{self.prefix}/{_key_of(file['name'])}.json"
                retry(record, lambda client: client.delete(record))
                raise UserError(f"{location}: wrong checksum, record deleted; run the command again to rebuild it")
            yield path

    def prune(self, keys: Collection[str]) -> None:
        """Remove the files of all other partitions; files that do not belong to a partition stay."""
        for entry in self._list():
            name = entry.location.removeprefix(f"{self.prefix}/")
            if _PARTITION_FILE.fullmatch(name) and _key_of(name) not in keys:
                retry(entry.location, functools.partial(S3Client.delete, location=entry.location))

    def _list(self) -> list[S3Object]:
        return retry(self.prefix, lambda client: client.list(f"{self.prefix}/"))


PartitionStore = FolderPartitionStore | S3PartitionStore


def _found(read: Callable[[str], Any], keys: Sequence[str], num_threads: int) -> dict[str, Any]:
    with ThreadPoolExecutor(num_threads) as threads:
        return {key: record for key, record in zip(keys, threads.map(read, keys)) if record is not None}


def check_version(version: int) -> None:
    """Check that this worker runs the same version of the corpus code as the main process.

    Raises:
        UserError: the versions differ.
    """
    if version != versions.corpus:
        raise UserError(
            f"this worker's corpus code has version {versions.corpus}, expected {version}; install the same Cloze "
            "on all workers and start them again"
        )


def _files_of(record: Any) -> list[File]:
    described = [*record["parts"], record["facts"]]
    return [{"name": file["name"], "bytes": file["bytes"], "sha256": file["sha256"]} for file in described]


def _key_of(name: str) -> str:
    return re.split("[.-]", name, maxsplit=1)[0]


def describe(path: Path) -> File:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"name": path.name, "bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


def open_store(exchange: str | None, folder: Path) -> PartitionStore:
    return FolderPartitionStore(folder.absolute()) if exchange is None else S3PartitionStore(exchange.rstrip("/"))
