"""Data types of corpus processing: file chunks, drafts and documents; and helpers that read lines of files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from model.common.errors import UserError
from tasks.s3.shared_objects import open_object

if TYPE_CHECKING:
    from tasks.corpus.sources.hashed_words import HashedWords

_READ_BYTES = 1 << 20
_PACKED: dict[tuple[str, ...], Callable[[BinaryIO], Any]] = {
    (".gz", ".tgz"): lambda file: gzip.GzipFile(fileobj=file),
    (".bz2", ".tbz2"): bz2.BZ2File,
    (".xz", ".txz"): lzma.LZMAFile,
}
_LEAST_UNPACKED, _MOST_TIMES = 4 << 30, 250  # 4 GiB take a minute; readers skip large rows in constant memory


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
    """Decompress a stream whose name has the suffix of gzip, bzip2 or xz; return any other file unchanged.

    Reading raises a UserError if the content is a decompression bomb; see `most_unpacked`.
    """
    opener = next((opener for suffixes, opener in _PACKED.items() if name.lower().endswith(suffixes)), None)
    if opener is None:
        return file
    most = most_unpacked(file.seek(0, os.SEEK_END))
    file.seek(0)
    return io.BufferedReader(_Unpacked(opener(file), name, most), _READ_BYTES)


def most_unpacked(size: int) -> int:
    """Return the largest plausible content, in bytes, of a compressed file of `size` bytes.

    Text compresses 3 to 20 times, and repetitive tables about a hundred times.
    """
    return max(_LEAST_UNPACKED, _MOST_TIMES * size)


def is_bomb(name: str, most: int) -> UserError:
    """Return the error for a file whose content is larger than `most_unpacked`."""
    return UserError(
        f"{name}: expands to more than {most:,} bytes, {_MOST_TIMES} times its size, so it is damaged or a "
        "decompression bomb; unpack it yourself if it is not"
    )


class _Unpacked(io.RawIOBase):
    """A decompressed stream that raises an error once it is larger than `most` bytes."""

    def __init__(self, stream: Any, name: str, most: int) -> None:
        self._stream, self._name, self._most, self._size = stream, name, most, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._stream.readinto(buffer)
        self._size += count
        if self._size > self._most:
            raise is_bomb(self._name, self._most)
        return count


def _skip_line(file: BinaryIO) -> int:
    skipped = 0
    while part := file.readline(_READ_BYTES):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped
