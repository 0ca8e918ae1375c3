"""Stages of a document on its way into the corpus: chunks and lines of files, drafts, and documents."""

from __future__ import annotations

import bz2
import gzip
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from model.common.errors import UserError
from tasks.corpus.sources.hashed_words import HashedWords
from tasks.s3.shared_objects import open_object

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class FileChunk:
    """A file, or the part of it whose items begin in the bytes from `start` to before `end`.

    Readers go on after `end` until the item that began before it is complete, so chunks may be cut anywhere.
    """

    location: str
    """An absolute path, or s3://bucket/key."""
    name: str
    """The file as people know it (data/books/b.txt), for identifiers and messages."""
    size: int
    """Bytes of the whole file."""
    start: int
    end: int
    stamp: str
    """Version of the file: its time of modification, or its ETag."""

    @classmethod
    def whole(cls, path: Path, name: str) -> FileChunk:
        """All of a local file.

        Raises:
            UserError: it is not there.
        """
        try:
            stat = path.stat()
        except FileNotFoundError:
            raise UserError(f"{name}: vanished while it was listed; put it back and run again") from None
        return cls(str(path), name, stat.st_size, 0, stat.st_size, str(stat.st_mtime_ns))

    @property
    def is_last(self) -> bool:
        return self.end >= self.size

    def open(self) -> BinaryIO:
        """The whole file, to be read from any byte on.

        Raises:
            UserError: it is not there any more, or is another one than was listed.
        """
        if self.location.startswith("s3://"):
            return open_object(self.location, self.size, self.stamp)
        try:
            file = Path(self.location).open("rb")  # noqa: SIM115
        except FileNotFoundError:
            raise UserError(f"{self.name}: vanished after it was listed; put it back and run again") from None
        stat = os.fstat(file.fileno())
        if (stat.st_size, str(stat.st_mtime_ns)) != (self.size, self.stamp):
            file.close()
            raise UserError(f"{self.name}: was changed after it was listed; run again when it is complete")
        return file

    def check_unchanged(self) -> None:
        """Raise the errors of `open` if the file was changed while it was read."""
        self.open().close()


@dataclass(frozen=True)
class Draft:
    """A document as paragraphs of prose."""

    id: str
    title: str
    paragraphs: list[str]


@dataclass(frozen=True)
class Document:
    """A document as the corpus holds it."""

    id: str
    title: str
    sentences: list[str]
    num_words: int
    hashed: HashedWords
    """Its words, normalised."""


class Dropped(Exception):
    """An item that yields no document; the message is the reason that drops are counted by."""


def numbered_lines(
    file: BinaryIO, max_bytes: int, drops: Counter[str], start: int = 0, end: int = sys.maxsize
) -> Iterator[tuple[int, bytes]]:
    """(Number from 1, line) of the lines that begin in the bytes from `start` to before `end`.

    A line longer than `max_bytes` is passed over in constant memory and counted as "line too large". Numbers count from
    `start`.
    """
    position = start
    if start:
        file.seek(start - 1)
        position += _skip_line(file) - 1  # a line that begins at `start` follows a line break
    number = 0
    while position < end:
        number += 1
        line = file.readline(max_bytes + 1)
        if not line:
            return
        position += len(line)
        if len(line) > max_bytes:
            if not line.endswith(b"\n"):
                position += _skip_line(file)
            drops["line too large"] += 1
        else:
            yield number, line


def unpacked(file: BinaryIO, name: str) -> Any:
    """The bytes of a file that is packed if its name ends with .gz or .bz2, as a stream; else the file."""
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    return bz2.BZ2File(file) if name.endswith(".bz2") else file


def _skip_line(file: BinaryIO) -> int:
    skipped = 0
    while part := file.readline(_READ_BYTES):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped
