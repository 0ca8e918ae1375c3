"""Objects on S3: sources that are read from there, and cleaned units that are exchanged through it.

The endpoint, the region and the keys are those of the usual AWS environment (AWS_ENDPOINT_URL for other makers).
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from model.common.errors import UserError
from tasks.corpus.partition_store import File, Findings, Record, describe, files_of, key_of
from tasks.corpus.sources.documents import Piece

Result = TypeVar("Result")
_ATTEMPTS = 6
_WAIT_SECONDS = 0.1  # before the second attempt; then twice as long each time
_READ_BYTES = 4 << 20
_GONE = {"404", "NoSuchKey", "NotFound", "NoSuchBucket"}
_OURS = re.compile(r"[0-9a-f]{16}[.-][^/]+")


@dataclass(frozen=True)
class UnitObjects:
    """Units below a prefix that belongs to one corpus."""

    prefix: str
    """s3://bucket/prefix, without a slash at its end."""

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder of this machine."""
        with tempfile.TemporaryDirectory(prefix="cloze-") as folder:
            yield Path(folder)

    def put(self, path: Path) -> File:
        """Upload the file; S3 shows it when it is whole."""
        described = describe(path)
        bucket, key = _split(f"{self.prefix}/{path.name}")
        attempt(f"{self.prefix}/{path.name}", lambda: _client().upload_file(str(path), bucket, key))
        return described

    def put_record(self, record: Record | Findings) -> None:
        """Upload the record as JSON."""
        name = f"{self.prefix}/{record['key']}.json"
        bucket, key = _split(name)
        body = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False).encode()
        attempt(name, lambda: _client().put_object(Bucket=bucket, Key=key, Body=body))

    def records(self, keys: Sequence[str], num_threads: int) -> dict[str, Any]:
        """Compares the files' sizes; their digests are compared when they are fetched."""
        sizes = {piece.location.rsplit("/", 1)[-1]: piece.size for piece in list_objects(f"{self.prefix}/")}

        def read(key: str) -> Any:
            if f"{key}.json" not in sizes:
                return None
            bucket, name = _split(f"{self.prefix}/{key}.json")
            body = attempt(name, lambda: _client().get_object(Bucket=bucket, Key=name)["Body"].read())
            try:
                record = json.loads(body)
                whole = all(sizes.get(file["name"]) == file["bytes"] for file in files_of(record))
            except (ValueError, KeyError, TypeError):
                return None
            return record if whole and record["key"] == key else None

        with ThreadPoolExecutor(4 * num_threads) as threads:
            return {key: record for key, record in zip(keys, threads.map(read, keys)) if record is not None}

    @contextlib.contextmanager
    def fetch(self, file: File) -> Iterator[Path]:
        """A copy on this machine while the block runs."""
        name = f"{self.prefix}/{file['name']}"
        bucket, key = _split(name)
        with self.scratch() as folder:
            path = folder / file["name"]
            attempt(name, lambda: _client().download_file(bucket, key, str(path)))
            if describe(path) != {name: file[name] for name in ("name", "bytes", "sha256")}:  # type: ignore[literal-required]
                record = f"{_split(self.prefix)[1]}/{key_of(file['name'])}.json"
                attempt(record, lambda: _client().delete_object(Bucket=bucket, Key=record))
                raise UserError(f"{name}: is not what was written; its unit is forgotten, run again")
            yield path

    def prune(self, keys: Collection[str]) -> None:
        """Remove the files of other units; what is not named like one stays."""
        for piece in list_objects(f"{self.prefix}/"):
            name = piece.location.removeprefix(f"{self.prefix}/")
            if _OURS.fullmatch(name) and key_of(name) not in keys:
                bucket, key = _split(piece.location)
                attempt(name, functools.partial(_client().delete_object, Bucket=bucket, Key=key))


def list_objects(prefix: str) -> list[Piece]:
    """All objects whose names begin with `prefix` (s3://bucket/...), each as one piece."""
    bucket, start = _split(prefix)

    def read() -> list[Piece]:
        pages = _client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=start)
        found = [entry for page in pages for entry in page.get("Contents", [])]
        names = [f"s3://{bucket}/{entry['Key']}" for entry in found]
        return [Piece(name, name, entry["Size"], 0, entry["Size"], entry["ETag"]) for name, entry in zip(names, found)]

    return attempt(prefix, read)


def open_object(location: str, name: str, size: int, etag: str) -> BinaryIO:
    """An object to be read from any byte on, a few megabytes at a time, each tried again when it fails."""
    return io.BufferedReader(_Object(location, name, size, etag), _READ_BYTES)  # type: ignore[return-value]


def attempt(name: str, call: Callable[[], Result]) -> Result:
    """Call until it succeeds, up to six times with growing waits.

    Raises:
        UserError: the object is gone, was changed, or S3 goes on failing.
    """
    for tried in range(1, _ATTEMPTS + 1):
        try:
            return call()
        except (ClientError, BotoCoreError, OSError) as error:
            response = error.response if isinstance(error, ClientError) else {}
            code = str(response.get("Error", {}).get("Code", ""))
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code in _GONE:
                raise UserError(f"{name}: is not there, or not any more; put it back and run again") from None
            if code in {"PreconditionFailed", "412"}:
                raise UserError(f"{name}: was changed after it was listed; run again when it is complete") from None
            if tried == _ATTEMPTS or (400 <= status < 500 and status not in (408, 429)):
                reason = " ".join(str(error).split())
                raise UserError(f"{name}: S3 failed {tried} times ({reason}); check endpoint and keys") from None
            time.sleep(_WAIT_SECONDS * 2 ** (tried - 1))
    raise AssertionError("the last attempt returns or raises")


class _Object(io.RawIOBase):
    def __init__(self, location: str, name: str, size: int, etag: str) -> None:
        self._bucket, self._key = _split(location)
        self._name = name
        self._size = size
        self._etag = etag
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        last = min(self._position + len(buffer), self._size)
        if last <= self._position:
            return 0
        wanted = {"Range": f"bytes={self._position}-{last - 1}", "IfMatch": self._etag}

        def read() -> bytes:
            content = _client().get_object(Bucket=self._bucket, Key=self._key, **wanted)["Body"].read()
            if len(content) != last - self._position:
                raise OSError(f"{len(content):,} bytes of {last - self._position:,}")
            return content

        content = attempt(self._name, read)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


@functools.lru_cache(maxsize=1)
def _client() -> Any:
    """One per process; botocore's clients may be used by several threads."""
    retries: Any = {"max_attempts": 5, "mode": "standard"}
    # Makers other than Amazon do not all know the checksums that newer clients add to every request.
    config = Config(
        retries=retries, request_checksum_calculation="when_required", response_checksum_validation="when_required"
    )
    return boto3.client("s3", config=config)


def _split(location: str) -> tuple[str, str]:
    """Bucket and key of s3://bucket/key."""
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return bucket, key
