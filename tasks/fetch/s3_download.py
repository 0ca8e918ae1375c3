"""The fetch source type s3: objects are read in ranges, several at a time, resumed range by range, and verified.

A file next to each unfinished download lists the ranges that it holds.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath

from model.common.errors import UserError
from model.common.state_files import read_state, write_state
from tasks.fetch.transfer import (
    BLOCK_BYTES,
    Attempts,
    FetchedFile,
    Gone,
    Report,
    StagingArea,
    check_stop,
    intact_lines,
    raise_disk_error,
    safe_name,
    with_checksum,
)
from tasks.params.fetch import FetchSettings, S3Source
from tasks.project import parallel
from tasks.project.workspace import folder_bytes, require_space
from tasks.s3.client import CHANGED, MISSING, S3Client, S3Object, S3Refused, S3Unavailable


def fetch(source: S3Source, settings: FetchSettings, staging: StagingArea, report: Report) -> None:
    """Download the object, or all objects below the prefix, into `staging`.

    Raises:
        UserError: there are no objects, access is denied, or an object differs from its checksum.
        Gone: the server failed too often.
    """
    staging.is_file = not source.is_prefix
    client = S3Client(
        source.endpoint_url,
        attempts=settings.attempts,
        connect_timeout=settings.timeout_seconds,
        read_timeout=settings.timeout_seconds,
        num_connections=source.num_connections,
    )
    try:
        _S3Download(source, settings, staging, report, client).run()
    except S3Refused as error:
        is_lost_prefix = error.code in MISSING - {"NoSuchBucket"} and not source.is_prefix
        hint = "; end a prefix with a slash" if is_lost_prefix else ""
        code = f" ({error.code})" if error.code else ""
        raise UserError(f"{source.url}: {error.reason}{code}{hint}") from None
    except S3Unavailable as error:
        if not error.is_temporary:
            raise UserError(f"{source.url}: {error.reason}") from None
        raise Gone(f"{source.url}: {error.reason}, repeatedly; downloaded data is kept") from None


@dataclass
class ObjectDownload:
    """An object that is being downloaded."""

    location: str
    name: str
    size: int
    etag: str
    """Without quotation marks."""
    part: Path
    part_bytes: int
    num_left: int = 0
    """Number of ranges that are still to be downloaded."""

    def span(self, number: int) -> tuple[int, int]:
        """First byte of a range, and the byte after its last one."""
        begin = number * self.part_bytes
        return begin, min(begin + self.part_bytes, self.size)

    @property
    def note(self) -> Path:
        """The file that lists the numbers of the ranges that `part` holds."""
        return self.part.with_suffix(".ranges")

    def open(self) -> list[int]:
        """Resume the download of an earlier run, or start over; returns the numbers of the missing ranges."""
        version = {"etag": self.etag, "size": self.size, "part_bytes": self.part_bytes}
        done: set[int] = set()
        head = self.part.with_suffix(".version")
        if self.part.exists() and read_state(head) == version and self.note.exists():
            done = set(map(int, intact_lines(self.note)))
        else:
            with self.part.open("wb") as file:
                file.truncate(self.size)
            self.note.write_text("")
            write_state(head, version)
        num_ranges = max(1, -(-self.size // self.part_bytes))  # an empty object has one
        missing = [number for number in range(num_ranges) if number not in done]
        # complete but not kept, because the process was killed in between: repeat the last range
        missing = missing or [num_ranges - 1]
        self.num_left = len(missing)
        return missing

    def range_done(self, number: int) -> None:
        """Record that `part` holds a range."""
        with self.note.open("a") as note:
            note.write(with_checksum(str(number)))
        self.num_left -= 1

    def remove(self) -> None:
        for path in (self.part, self.note, self.part.with_suffix(".version")):
            path.unlink(missing_ok=True)


@dataclass
class _S3Download:
    source: S3Source
    settings: FetchSettings
    staging: StagingArea
    report: Report
    client: S3Client
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when one range has failed, so that the threads of the others end."""

    def run(self) -> None:
        objects = self.list_objects()
        kept = {(name, row.bytes, row.etag) for name, row in self.staging.files.items()}
        missing = [item for item in objects if (item.name, item.size, item.etag) not in kept]
        self.staging.keep_only({item.name for item in objects} - {item.name for item in missing})
        total = sum(item.size for item in objects)
        done = total - sum(item.size for item in missing)
        require_space(self.staging.folder, total - folder_bytes(self.staging.folder), self.source.url)
        ranges = ((item, number) for item in missing for number in item.open())
        running: dict[Future[None], tuple[ObjectDownload, int]] = {}
        with ThreadPoolExecutor(self.source.num_connections, "s3") as pool:
            try:
                while True:
                    for job in islice(ranges, 2 * self.source.num_connections - len(running)):
                        running[pool.submit(self.download, *job)] = job
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        item, number = running.pop(future)
                        future.result()
                        item.range_done(number)
                        begin, end = item.span(number)
                        done += end - begin
                        self.report(done, total, item.name)
                        if not item.num_left:
                            self.finish(item)
            except BaseException:
                self.ended.set()
                pool.shutdown(cancel_futures=True)
                raise

    def list_objects(self) -> list[ObjectDownload]:
        source = self.source
        found: list[tuple[str, S3Object]] = []
        if not source.is_prefix:
            head = self.client.head(source.url)
            found.append((PurePosixPath(source.to).name, S3Object(source.url, head["ContentLength"], head["ETag"])))
        else:
            for entry in self.client.list(source.url):
                name = entry.location.removeprefix(source.url)
                if name and not name.endswith("/") and fnmatchcase(name, source.include):
                    found.append((safe_name(name, source.url), entry))
        if not found:
            raise UserError(f"{source.url}: no object below this prefix matches include '{source.include}'")
        return [
            ObjectDownload(location, name, size, etag.strip('"'), self.staging.part(name), source.part_bytes)
            for name, (location, size, etag) in found
        ]

    def download(self, item: ObjectDownload, number: int) -> None:
        attempts = Attempts(f"{self.source.url}: {item.name}", self.settings.attempts, self.settings.wait_seconds)
        begin, end = item.span(number)
        while not self.ended.is_set() and begin < end:
            check_stop()
            reason = self.try_range(item, begin, end)
            if not reason:
                return
            attempts.failed(reason)

    def try_range(self, item: ObjectDownload, begin: int, end: int) -> str:
        """Download a range once; the reason if the response broke off. (boto repeats requests that fail at once.)"""
        from botocore.exceptions import BotoCoreError

        try:
            body = self.client.open(item.location, (begin, end), f'"{item.etag}"')
        except S3Refused as error:
            if error.code not in CHANGED:
                raise
            item.remove()
            raise UserError(f"{item.location}: the file changed while it was being read; fetch it again") from None
        try:
            with contextlib.closing(body), item.part.open("r+b") as file:
                file.seek(begin)
                for block in body.iter_chunks(BLOCK_BYTES):
                    file.write(block[: end - file.tell()])
                    check_stop()
                file.flush()
                os.fsync(file.fileno())
                return "" if file.tell() == end else "the response was cut off"
        except (BotoCoreError, OSError) as error:
            raise_disk_error(error)
            return f"the connection failed ({type(error).__name__})"

    def finish(self, item: ObjectDownload) -> None:
        """Keep a complete object if it has the checksum that it should have."""
        kind, expected, part_bytes = next(self.expected_checksums(item))
        found = checksums_of(item.part, part_bytes)
        if found[kind] != expected:
            item.remove()
            raise UserError(f"{item.location}: its {kind} is {found[kind]}, expected {expected}; it was discarded")
        self.staging.keep(item.name, item.part, FetchedFile(item.size, found["sha256"], item.location, kind, item.etag))
        item.remove()

    def expected_checksums(self, item: ObjectDownload) -> Iterator[tuple[str, str, int]]:
        """(Kind, checksum, size of the parts that an ETag is made of), the strongest first."""
        if self.source.sha256:
            yield "sha256", self.source.sha256, 0
        head = self.client.head(item.location, ChecksumMode="ENABLED")
        in_parts = "-" in item.etag
        if not in_parts and "-" not in head.get("ChecksumSHA256", "-"):
            yield "sha256", base64.b64decode(head["ChecksumSHA256"]).hex(), 0
        # With encryption by a key of the user's, the ETag is not a digest.
        if "aws:kms" not in head.get("ServerSideEncryption", "") and "SSECustomerAlgorithm" not in head:
            if not in_parts and len(item.etag) == 32:
                yield "etag", item.etag, 0
            if in_parts:
                first = self.client.head(item.location, PartNumber=1)
                part_bytes, count = first["ContentLength"], int(item.etag.rpartition("-")[2])
                if part_bytes and first.get("PartsCount") == count == -(-item.size // part_bytes):
                    yield "etag", item.etag, part_bytes
        if "-" not in head.get("ChecksumCRC32", "-") and (not in_parts or head.get("ChecksumType") == "FULL_OBJECT"):
            yield "crc32", base64.b64decode(head["ChecksumCRC32"]).hex(), 0
        yield "size", str(item.size), 0


def checksums_of(path: Path, part_bytes: int = 0) -> dict[str, str]:
    """size, sha256, crc32, and the ETag that S3 gives to an upload in parts of `part_bytes` (0: in one part)."""
    sha256, crc, size = hashlib.sha256(), 0, 0
    limit = part_bytes or sys.maxsize
    parts = []
    with path.open("rb") as file:
        while block := file.read(min(BLOCK_BYTES, limit - size % limit)):
            parallel.check_stop("downloaded data is kept")
            if size % limit == 0:
                parts.append(hashlib.md5(usedforsecurity=False))
            parts[-1].update(block)
            sha256.update(block)
            crc = zlib.crc32(block, crc)
            size += len(block)
    digests = b"".join(part.digest() for part in parts)
    etag = f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"
    if not part_bytes:
        etag = parts[0].hexdigest() if parts else hashlib.md5(usedforsecurity=False).hexdigest()
    return {"size": str(size), "sha256": sha256.hexdigest(), "crc32": f"{crc:08x}", "etag": etag}
