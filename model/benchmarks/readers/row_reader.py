"""Base class of the readers of files with columns, and the conversion of their label columns."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NoReturn

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.readers.row_errors import MalformedRow, RowErrors
from model.benchmarks.readers.rows import Row, Table
from model.benchmarks.sources import SourceFiles
from model.common.errors import UserError


class RowReader(ABC):
    """Reads the files of one split into `examples`.

    Subclasses name their columns and convert one row; this class handles row ids, empty texts, and row errors.

    Args:
        source: the files and the benchmark with their columns.
        errors: collects malformed rows.
        training: whether the rows are training rows.
        labeled: whether the label column is required.
    """

    noun = "label"
    """How messages refer to a label."""

    def __init__(self, source: SourceFiles, errors: RowErrors, training: bool, labeled: bool) -> None:
        self.row = source.row
        self.errors = errors
        self.examples: list[Any] = []
        self._training = training
        self._labeled = labeled
        for path in source.paths:
            needed, optional = self._columns()
            (needed if labeled else optional).append(self.row.label)
            self.table = Table(path, needed, [*optional, self.row.identity or ""], self.row.columns, source.ending)
            self.at = {name: number for number, name in enumerate(self.table.header)}
            self._id_column = self.table.column(self.row.identity)
            label = self.table.column(self.row.label)
            self.labels = LabelReader(self.row, path, label, errors, not labeled, self.noun)
            for row in self.table.rows(errors):
                try:
                    self.examples.append(self._example(row))
                except MalformedRow as error:
                    errors.malformed(path, row[0], str(error))
            self.labels.check()

    @abstractmethod
    def _columns(self) -> tuple[list[str], list[str]]:
        """Required and optional columns, in addition to the label and the id."""

    @abstractmethod
    def _example(self, row: Row) -> Any:
        """Convert one row; raises MalformedRow."""

    def id_of(self, row: Row) -> str:
        """The row's id from its column, or its number counted from 0."""
        value = None if self._id_column is None else row[1][self._id_column]
        if value is None:
            return str(len(self.examples))
        return self.errors.unique_id(self.table.path, row[0], str(value))

    def text(self, row: Row, column: str) -> str:
        """The text of a column.

        Raises:
            MalformedRow: the field is not text, or it is empty and such rows are skipped.
        """
        text = text_of(row[1][self.at[column]], column)
        if not text or text.isspace():
            if self.errors.skips and self.row.skips_empty:
                raise MalformedRow(f"an empty text in column {column!r}")
            self.errors.note(self.table.path, row[0], f"rows with an empty text in column {column!r}")
        return text


class LabelReader:
    """Converts the label fields of one file to indices or scores, and remembers unknown labels.

    Args:
        column: index of the label column, or None.
        withheld: whether labels may be hidden, as in test files; such labels are None.
        noun: how messages refer to a label.
    """

    def __init__(
        self, row: Benchmark, path: Path, column: int | None, errors: RowErrors, withheld: bool, noun: str
    ) -> None:
        self._row = row
        self._path = path
        self._column = column
        self._errors = errors
        self._withheld = withheld
        self._noun = noun
        self.spelled = label_speller(row)
        self._index = {label: number for number, label in enumerate(row.labels)}
        self._found: set[str] = set()
        self._unknown: tuple[int, str] | None = None

    def index(self, row: Row) -> int | None:
        """The row's label as an index into the benchmark's labels.

        Raises:
            MalformedRow: rows may be skipped, and the label is missing or marks annotator disagreement.
        """
        if self._column is None:
            return None
        label = self.spelled(row[1][self._column])
        if self._withheld and label in ("", "-1"):
            return None
        if self._errors.skips and label == self._row.unlabelled:
            raise MalformedRow(f"the label {label!r}: annotators disagreed")
        if self._errors.skips and not label:
            raise MalformedRow("no label")
        self.found(row, [label])
        return self._index.get(label)

    def score(self, row: Row) -> float | None:
        """The row's label as a number.

        Raises:
            MalformedRow: the label is not a finite number.
        """
        if self._column is None:
            return None
        field = row[1][self._column]
        try:
            score = float(field)
        except (TypeError, ValueError):
            score = math.nan
        if self._withheld and (score == -1.0 or field is None):
            return None
        if not math.isfinite(score):
            raise MalformedRow(f"expected a number in column {self._row.label!r}, got {field!r}")
        return score

    def found(self, row: Row, labels: Iterable[str]) -> None:
        """Record the labels of a row, and remember the first unknown label; without expected labels all are known."""
        for label in labels:
            self._found.add(label)
            if self._index and label not in self._index and self._unknown is None:
                self._unknown = (row[0], label)

    def check(self) -> None:
        """Raise UserError for the first unknown label of the file."""
        if self._unknown is not None:
            refuse_labels(self._path, *self._unknown, self._row.labels, self._found, self._noun)


def label_speller(row: Benchmark) -> Callable[[Any], str]:
    """A function from label fields to the benchmark's spelling of the label; missing labels become "".

    Label numbers are converted to class names if the file or the benchmark gives names.
    """
    names = tuple(row.classes)

    def spell(value: Any) -> str:
        label = value if isinstance(value, str) else spelled(value)
        if names and label not in row.classes and label.isdecimal() and int(label) < len(names):
            label = names[int(label)]
        return row.classes.get(label, label)

    return spell


def spelled(value: Any) -> str:
    """A label as text: whole numbers without a decimal point, booleans in lower case, null as ""."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def text_of(value: Any, column: str) -> str:
    """A field as text.

    Raises:
        MalformedRow: the field is null or a list.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        found = "null" if value is None else type(value).__name__
        raise MalformedRow(f"expected text in column {column!r}, found {found}")
    return str(value)


def refuse_labels(
    path: Path, where: int | str, label: str, expected: Iterable[str], found: Collection[str], noun: str = "label"
) -> NoReturn:
    """Raise UserError for a label that is not expected; the message lists the labels of the file."""
    names = sorted(found)
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    location = f"row {where}" if isinstance(where, int) else where
    raise UserError(
        f"{path}: {location}: {f'unknown {noun} {label!r}' if label else f'no {noun}'}; expected "
        f"{', '.join(expected)}; {noun}s found: {', '.join(repr(name) for name in names[:10])}{more}"
    )
