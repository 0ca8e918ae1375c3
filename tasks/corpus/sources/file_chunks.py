"""Data types of corpus processing: file chunks, drafts and documents; and helpers that read lines of files."""

from __future__ import annotations

import bz2
import gzip
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from model.common.errors import UserError
from tasks.s3.shared_objects import open_object

if TYPE_CHECKING:
    from tasks.corpus.sources.hashed_words import HashedWords

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class FileChunk:
    """A file, or the items of a file that begin between byte `start` (included) and byte `end` (excluded).

    Readers continue past `end` until the current item is complete, so chunk boundaries can be anywhere.
    """

    location: str
    """An absolute path, or s3://bucket/key."""
    name: str
    """Short name of the file (data/books/b.txt), for identifiers and messages."""
    size: int
    """Size of the whole file in bytes."""
    start: int
    end: int
    stamp: str
    """Version of the file: its modification time or its ETag."""

    @classmethod
    def whole(cls, path: Path, name: str) -> FileChunk:
        """Create a chunk that covers a whole local file.

        Raises:
            UserError: the file does not exist.
        """
        try:
            stat = path.stat()
        except FileNotFoundError:
            raise UserError(f"{name}: removed while it was listed; restore it and run again") from None
        return cls(str(path), name, stat.st_size, 0, stat.st_size, str(stat.st_mtime_ns))

    @property
    def is_last(self) -> bool:
        return self.end >= self.size

    def open(self) -> BinaryIO:
        """Open the whole file for reading, with random access.

        Raises:
            UserError: the file was removed or changed after it was listed.
        """
        if self.location.startswith("s3://"):
            return open_object(self.location, self.size, self.stamp)
        try:
            file = Path(self.location).open("rb")  # noqa: SIM115
        except FileNotFoundError:
            raise UserError(f"{self.name}: removed after it was listed; restore it and run again") from None
        stat = os.fstat(file.fileno())
        if (stat.st_size, str(stat.st_mtime_ns)) != (self.size, self.stamp):
            file.close()
            raise UserError(f"{self.name}: changed after it was listed; run again when it is complete")
        return file

    def check_unchanged(self) -> None:
        """Raise the same errors as `open` if the file was removed or changed."""
        self.open().close()


@dataclass(frozen=True)
class Draft:
    """A document as paragraphs, before sentence splitting and filtering."""

    id: str
    title: str
    paragraphs: list[str]


@dataclass(frozen=True)
class Document:
    """A document as a list of sentences, ready for the corpus."""

    id: str
    title: str
    sentences: list[str]
    num_words: int
    hashed: HashedWords
    """The normalized words of the document."""


class Dropped(Exception):
    """Raised for an item that yields no document; the message is the reason under which it is counted."""


def numbered_lines(
    file: BinaryIO, max_bytes: int, drops: Counter[str], start: int = 0, end: int = sys.maxsize
) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) of the lines that begin between byte `start` (included) and byte `end` (excluded).

    A line longer than `max_bytes` is skipped in constant memory and counted as "line too large". The first line after
    `start` has number 1.
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
    """Decompress a stream whose name ends with .gz or .bz2; return any other file unchanged."""
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
