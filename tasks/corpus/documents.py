"""What travels between the reading process and the workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

CHUNK_BYTES = 1 << 20  # of raw text: large enough that sending it costs nothing, small enough to keep workers busy


@dataclass(frozen=True)
class Chunk:
    """Raw items of one source file, for one worker."""

    items: list[Any]
    """What the kind's reader yields: pages, rows, a book."""
    file: str
    """The file, relative to data/, for identifiers and messages."""
    done_bytes: int
    """How much of the file had been read when the chunk was complete."""
    context: Any = None
    """What the items' parser must know of their file."""
    drops: Counter[str] = field(default_factory=Counter)
    """What the reader refused, by reason."""


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
    digest: int
    """tasks.corpus.dedup.document_digest of the sentences."""


class Dropped(Exception):
    """An item that yields no document; the message is the reason that drops are counted by."""
