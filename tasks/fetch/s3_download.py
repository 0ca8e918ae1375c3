"""The fetch source type s3: objects are read in ranges, several at a time, resumed range by range, and verified.

A file next to each unfinished download lists the ranges that it holds.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from model.common.errors import UserError
from model.common.files import read_json, write_json
from tasks.fetch.transfer import (
    BLOCK_BYTES,
    Attempts,
    Fetched,
    FetchedFile,
    Gone,
    Report,
    StagingArea,
    check_stop,
    raise_disk_error,
    safe_name,
)
from tasks.params.fetch import FetchSettings, S3Source
from tasks.project.workspace import folder_bytes, require_space
from tasks.s3.checksums import verify_download
from tasks.s3.client import CHANGED, MISSING, S3Client, S3Object, S3Refused, S3Unavailable


def fetch(source: S3Source, settings: FetchSettings, staging: StagingArea, report: Report) -> Fetched:
    """Download the object, or all objects below the prefix, into `staging`.

    Raises:
        UserError: there are no objects, access is denied, or an object differs from its checksum.
        Gone: the server failed too often.
    """
    client = S3Client(
        source.endpoint_url,
        attempts=settings.attempts,
        connect_timeout=settings.timeout_seconds,
        read_timeout=settings.timeout_seconds,
        num_connections=source.num_connections,
    )
    with _errors_of(source):
        objects = _list(source, client, staging)
        complete = [item for item in objects if _is_complete(item, staging)]
        staging.keep_only(item.name for item in complete)
        total = sum(item.size for item in objects)
        require_space(staging.folder, total - folder_bytes(staging.folder), source.url)

        def attempts(name: str) -> Attempts:
            return Attempts(f"{source.url}: {name}", settings.attempts, settings.wait_seconds)

        def finish(item: ObjectDownload) -> None:
            try:
                sha256, checked = verify_download(item.part, client, item.location, item.etag, source.sha256)
            except UserError:
                item.remove()
                raise
            staging.keep(item.name, item.part, FetchedFile(item.size, sha256, item.location, checked, item.etag))
            item.remove()

        missing = [item for item in objects if item.name not in staging.files]
        downloader = _RangeDownloader(client, source.num_connections, attempts, report)
        downloader.run(missing, finish, sum(item.size for item in complete), total)
    return Fetched(staging.files, is_file=not source.is_prefix)


def _list(source: S3Source, client: S3Client, staging: StagingArea) -> list[ObjectDownload]:
    found: list[tuple[str, S3Object]] = []
    if not source.is_prefix:
        head = client.head(source.url)
        found.append((PurePosixPath(source.to).name, S3Object(source.url, head["ContentLength"], head["ETag"])))
    else:
        for entry in client.list(source.url):
            name = entry.location.removeprefix(source.url)
            if name and not name.endswith("/") and fnmatchcase(name, source.include):
                found.append((safe_name(name, source.url), entry))
    if not found:
        raise UserError(f"{source.url}: no object below this prefix matches include '{source.include}'")
    return [
        ObjectDownload(entry.location, name, entry.size, entry.etag.strip('"'), staging.part(name), source.part_bytes)
        for name, entry in found
    ]


def _is_complete(item: ObjectDownload, staging: StagingArea) -> bool:
    row = staging.files.get(item.name)
    return row is not None and (row.bytes, row.etag) == (item.size, item.etag)


@contextlib.contextmanager
def _errors_of(source: S3Source) -> Iterator[None]:
    """Report S3's errors with the source's address."""
    try:
        yield
    except S3Refused as error:
        hint = (
            "; end a prefix with a slash" if error.code in MISSING - {"NoSuchBucket"} and not source.is_prefix else ""
        )
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
    part: Path
    part_bytes: int
    missing: list[int] = field(default_factory=list)
    """Numbers of the ranges that are still to be downloaded."""

    @property
    def num_ranges(self) -> int:
        """Number of ranges; an empty object has one."""
        return max(1, -(-self.size // self.part_bytes))

    def span(self, number: int) -> tuple[int, int]:
        """First byte of a range, and the byte after its last one."""
        begin = number * self.part_bytes
        return begin, min(begin + self.part_bytes, self.size)

    @property
    def note(self) -> Path:
        """The file that lists the numbers of the ranges that `part` holds."""
        return self.part.with_suffix(".ranges")

    def open(self) -> None:
        """Find the ranges that an earlier run downloaded, or start over."""
        version = {"etag": self.etag, "size": self.size, "part_bytes": self.part_bytes}
        done: set[int] = set()
        head = self.part.with_suffix(".version")
        if self.part.exists() and head.exists() and read_json(head) == version and self.note.exists():
            done = {int(number) for number in self.note.read_text().split("\n")[:-1]}  # the last line may be incomplete
        else:
            with self.part.open("wb") as file:
                file.truncate(self.size)
            self.note.write_text("")
            write_json(head, version)
        self.missing = [number for number in range(self.num_ranges) if number not in done]

    def range_done(self, number: int) -> None:
        """Record that `part` holds a range."""
        with self.note.open("a") as note:
            note.write(f"{number}\n")

    def remove(self) -> None:
        """Remove the download and its notes."""
        for path in (self.part, self.note, self.part.with_suffix(".version")):
            path.unlink(missing_ok=True)


class _RangeDownloader:
    """Downloads objects; `finish` is called in the calling thread with each complete object."""

    def __init__(
        self, client: S3Client, num_connections: int, attempts: Callable[[str], Attempts], report: Report
    ) -> None:
        self._client, self._num_connections = client, num_connections
        self._attempts, self._report = attempts, report
        self._ended = threading.Event()

    def run(
        self, objects: list[ObjectDownload], finish: Callable[[ObjectDownload], None], done: int, total: int
    ) -> None:
        """Download all of `objects`; `done` of `total` bytes are complete already.

        Raises:
            Gone: the server failed too often.
            UserError: an object was changed in the meantime.
        """
        left: dict[str, int] = {}
        running: dict[Future[None], tuple[ObjectDownload, int]] = {}
        ranges = self._ranges(objects)
        with ThreadPoolExecutor(self._num_connections, "s3") as pool:
            try:
                while True:
                    while len(running) < 2 * self._num_connections and (job := next(ranges, None)) is not None:
                        running[pool.submit(self._download, *job)] = job
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        item, number = running.pop(future)
                        future.result()
                        item.range_done(number)
                        begin, end = item.span(number)
                        done += end - begin
                        self._report(done, total, item.name)
                        left[item.name] = left.get(item.name, len(item.missing)) - 1
                        if not left[item.name]:
                            finish(item)
            except BaseException:
                self._ended.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _ranges(self, objects: list[ObjectDownload]) -> Iterator[tuple[ObjectDownload, int]]:
        for item in objects:
            item.open()
            # complete but not kept, because the process was killed in between: repeat the last range
            item.missing = item.missing or [item.num_ranges - 1]
            for number in item.missing:
                yield item, number

    def _download(self, item: ObjectDownload, number: int) -> None:
        """Download one range, in a thread."""
        attempts = self._attempts(item.name)
        begin, end = item.span(number)
        while not self._ended.is_set() and begin < end:
            check_stop()
            reason = self._try_range(item, begin, end)
            if not reason:
                return
            attempts.failed(reason)

    def _try_range(self, item: ObjectDownload, begin: int, end: int) -> str:
        """Download a range once; the reason if the response broke off. (boto repeats requests that fail at once.)"""
        from botocore.exceptions import BotoCoreError

        try:
            body = self._client.open(item.location, (begin, end), f'"{item.etag}"')
        except S3Refused as error:
            if error.code not in CHANGED:
                raise
            item.remove()
            raise UserError(f"{item.location}: changed while it was read; fetch again") from None
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
