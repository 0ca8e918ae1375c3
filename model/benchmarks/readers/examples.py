"""The examples that readers return, one class per shape of a benchmark's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Example(ABC):
    """One row of a benchmark's file, in any format."""

    __slots__ = ()
    id: str

    @property
    @abstractmethod
    def grouping_text(self) -> str:
        """Text whose hash assigns the example to train or dev; examples that share it stay together."""


@dataclass(frozen=True, slots=True)
class TextExample(Example):
    """A sentence or a pair; the label is an index into the benchmark's labels, or a score for regression."""

    id: str
    first: str
    second: str | None
    label: int | float | None

    @property
    def grouping_text(self) -> str:
        return f"{self.first}\0{self.second or ''}"


@dataclass(frozen=True, slots=True)
class ChoiceExample(Example):
    """A context and its endings; `label` is the index of the right ending."""

    id: str
    context: str
    endings: tuple[str, ...]
    label: int | None

    @property
    def grouping_text(self) -> str:
        return self.context


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and the index of its first character in the context."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class SpanExample(Example):
    """A question about a context. It has no answers if the context does not answer it."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]

    @property
    def grouping_text(self) -> str:
        return self.context


@dataclass(frozen=True, slots=True)
class TagExample(Example):
    """A sentence as words with one tag each (IOB2 for entities). Withheld tags are empty."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    document: Sequence[tuple[str, ...]] = field(default=(), repr=False, compare=False)
    """The words of all sentences of its document, if the file marks documents."""
    index: int = field(default=0, repr=False, compare=False)
    """The sentence's place in `document`."""

    @property
    def grouping_text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Split:
    """The examples of one split (train, or one dev or test file), in file order, with counts of skipped rows."""

    path: Path
    """The file, or the first of several files."""
    examples: Sequence[Any]
    num_skipped: int = 0
    skipped: tuple[str, ...] = ()
    """The first skipped rows, each with the reason."""
    remarks: tuple[str, ...] = ()
    """One line for each kind of suspicious row that was kept."""
    name: str = ""
    """The file's name relative to the data folder."""
