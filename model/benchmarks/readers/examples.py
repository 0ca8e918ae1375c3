"""What a row of a benchmark's file says, whatever the file's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TextExample:
    """A sentence or a pair; the label is an index into the benchmark's labels, or a score for regression."""

    id: str
    first: str
    second: str | None
    label: int | float | None


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A context and the endings among which the right one (index `label`) is to be told."""

    id: str
    context: str
    endings: tuple[str, ...]
    label: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and the index of its first character in the context."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question about a context. No answers: the question cannot be answered from it."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class TagExample:
    """A sentence as words, with one tag each: IOB2 where tags mark entities. Without tags where they are withheld."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """The examples of one part, in its files' order, and how many rows were skipped as malformed."""

    path: Path
    """The file, or the first of several."""
    examples: Sequence[Any]
    num_skipped: int = 0
    skipped: tuple[str, ...] = ()
    """The first rows that were skipped, with the reason."""
    remarks: tuple[str, ...] = ()
    """What is odd about rows that were kept, a line for each kind."""
    name: str = ""
    """The file's name relative to the data folder."""
    num_whole: int = 0
    """How many examples there were before a cut; 0 where nothing was cut."""
