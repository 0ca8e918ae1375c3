"""Stages of a document on its way into the corpus: chunks of files, drafts, and documents."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from model.common.errors import UserError
from tasks.corpus.sources.hashed_words import HashedWords
from tasks.s3.shared_objects import open_object


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
        """True if the file ends with this chunk."""
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
        """Refuse what was read if the file was changed meanwhile.

        Raises:
            UserError: it is not there any more, or is another one than was listed.
        """
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
