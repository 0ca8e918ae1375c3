"""Ranges of many objects through a few connections; a note beside each part says which of them have come."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from model.common.files import read_json, write_json
from tasks.fetch.transfer import BLOCK_BYTES, Attempts, Report, check_stop, raise_own_fault

_CHANGED = ("412", "PreconditionFailed")


@dataclass
class Object:
    """An object on its way into the room."""

    key: str
    name: str
    size: int
    etag: str
    part: Path
    part_bytes: int
    missing: list[int] = field(default_factory=list)
    """Numbers of the ranges that have not come yet."""

    @property
    def num_ranges(self) -> int:
        """How many ranges it has; an empty object has one."""
        return max(1, -(-self.size // self.part_bytes))

    def span(self, number: int) -> tuple[int, int]:
        """Where a range begins and ends."""
        begin = number * self.part_bytes
        return begin, min(begin + self.part_bytes, self.size)

    @property
    def note(self) -> Path:
        """Which ranges of which version the part holds: a header line, then numbers."""
        return self.part.with_suffix(".ranges")

    def open(self) -> None:
        """Find what a former run has left, or start anew."""
        version = {"etag": self.etag, "size": self.size, "part_bytes": self.part_bytes}
        there: set[int] = set()
        head = self.part.with_suffix(".version")
        if self.part.exists() and head.exists() and read_json(head) == version and self.note.exists():
            there = {int(number) for number in self.note.read_text().split("\n")[:-1]}  # a torn last line is left out
        else:
            with self.part.open("wb") as file:
                file.truncate(self.size)
            self.note.write_text("")
            write_json(head, version)
        self.missing = [number for number in range(self.num_ranges) if number not in there]

    def came(self, number: int) -> None:
        """Note that a range lies in the part."""
        with self.note.open("a") as note:
            note.write(f"{number}\n")

    def remove(self) -> None:
        """Throw away what came."""
        for path in (self.part, self.note, self.part.with_suffix(".version")):
            path.unlink(missing_ok=True)


class Transfer:
    """Brings objects; `finish` is called with each, in the calling thread, when all of it is there."""

    def __init__(
        self, client: Any, bucket: str, num_connections: int, attempts: Callable[[str], Attempts], report: Report
    ) -> None:
        self._client, self._bucket, self._num_connections = client, bucket, num_connections
        self._attempts, self._report = attempts, report
        self._ended = threading.Event()

    def run(self, objects: list[Object], finish: Callable[[Object], None], done: int, total: int) -> None:
        """Bring all of `objects`; `done` of `total` bytes are here already.

        Raises:
            Gone: the server failed too often.
            UserError: an object was changed meanwhile.
        """
        left: dict[str, int] = {}
        running: dict[Future[None], tuple[Object, int]] = {}
        ranges = self._ranges(objects)
        with ThreadPoolExecutor(self._num_connections, "s3") as pool:
            try:
                while True:
                    while len(running) < 2 * self._num_connections and (item := next(ranges, None)) is not None:
                        running[pool.submit(self._bring, *item)] = item
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        thing, number = running.pop(future)
                        future.result()
                        thing.came(number)
                        begin, end = thing.span(number)
                        done += end - begin
                        self._report(done, total, thing.name)
                        left[thing.name] = left.get(thing.name, len(thing.missing)) - 1
                        if not left[thing.name]:
                            finish(thing)
            except BaseException:
                self._ended.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _ranges(self, objects: list[Object]) -> Iterator[tuple[Object, int]]:
        for thing in objects:
            thing.open()
            # all there but not kept: a kill came between; its last range comes again
            thing.missing = thing.missing or [thing.num_ranges - 1]
            for number in thing.missing:
                yield thing, number

    def _bring(self, thing: Object, number: int) -> None:
        """One range into its place, in a thread."""
        attempts = self._attempts(thing.name)
        begin, end = thing.span(number)
        while not self._ended.is_set() and begin < end:
            check_stop()
            reason = self._try_range(thing, begin, end)
            if not reason:
                return
            attempts.failed(reason)

    def _try_range(self, thing: Object, begin: int, end: int) -> str:
        """Write a range; the reason, where the server broke off. What it refuses at once, boto has tried again."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client.get_object(
                Bucket=self._bucket, Key=thing.key, Range=f"bytes={begin}-{end - 1}", IfMatch=f'"{thing.etag}"'
            )
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _CHANGED:
                raise
            thing.remove()
            raise UserError(f"s3://{self._bucket}/{thing.key}: changed while it was read; fetch again") from None
        try:
            with contextlib.closing(answer["Body"]) as body, thing.part.open("r+b") as file:
                file.seek(begin)
                for block in body.iter_chunks(BLOCK_BYTES):
                    file.write(block[: end - file.tell()])
                    check_stop()
                file.flush()
                os.fsync(file.fileno())
                return "" if file.tell() == end else "the answer was cut off"
        except (BotoCoreError, OSError) as error:
            raise_own_fault(error)
            return f"the connection failed ({type(error).__name__})"
