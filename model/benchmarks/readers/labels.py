"""Labels of rows as the head's indices or scores, and what is said about a set of labels that is not the row's."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.readers.row_faults import Faults, Malformed
from model.benchmarks.readers.rows import Row
from model.common.errors import UserError


class Labels:
    """Turns the label fields of one file into indices or scores; labels that the row does not know are remembered.

    `withheld` says that labels may be hidden, as in test files: they are None then.
    """

    def __init__(self, row: Benchmark, path: Path, column: int | None, faults: Faults, withheld: bool) -> None:
        self._row = row
        self._path = path
        self._column = column
        self._faults = faults
        self._withheld = withheld
        self.spelling = Spelling(row)
        self._index = {label: number for number, label in enumerate(row.labels)}
        self._found: set[str] = set()
        self._unknown: tuple[int, str] | None = None

    def of(self, row: Row) -> int | float | None:
        """The row's label as the head's index, or its score.

        Raises:
            Malformed: it has none (only where rows may be skipped), or annotators disagreed.
            UserError: it is not a number where a score was expected, and rows may not be skipped.
        """
        return self._score_of(row) if self._row.head == "regression" else self.index_of(row)

    def index_of(self, row: Row) -> int | None:
        """The row's label as an index; see `of`."""
        if self._column is None:
            return None
        label = self.spelling.of(row[1][self._column])
        if self._withheld and label in ("", "-1"):
            return None
        if self._faults.skips and label == self._row.unlabelled:
            raise Malformed(f"the label {label!r}: annotators disagreed")
        if self._faults.skips and not label:
            raise Malformed("no label")
        self._found.add(label)
        if label not in self._index and self._unknown is None:
            self._unknown = (row[0], label)
        return self._index.get(label)

    def check(self) -> None:
        """Refuse the file when a label was unknown, naming those that were found."""
        if self._unknown is not None:
            refuse_labels(self._path, *self._unknown, self._row.labels, self._found)

    def _score_of(self, row: Row) -> float | None:
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
            raise Malformed(f"expected a number in column {self._row.label!r}, got {field!r}")
        return score


class Spelling:
    """Label fields as the row spells labels: numbers by the names of the file's classes, names as the row says."""

    def __init__(self, row: Benchmark) -> None:
        self._classes = row.classes
        self._names = tuple(row.classes)

    def of(self, value: Any) -> str:
        """The label that a field stands for; empty for none."""
        label = value if isinstance(value, str) else spelt(value)
        if not self._classes:
            return label
        if label not in self._classes and label.isdecimal() and int(label) < len(self._names):
            label = self._names[int(label)]
        return self._classes.get(label, label)


def spelt(value: Any) -> str:
    """A label as text: a whole number without a point, true and false in small letters, nothing for null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def refuse_labels(
    path: Path, where: int | str, label: str, expected: Iterable[str], found: Collection[str], what: str = "label"
) -> None:
    """Refuse a file with a label that is not among the expected ones.

    Raises:
        UserError: always; the line names the row, what was expected and what was found.
    """
    names = sorted(found)
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    place = f"row {where}" if isinstance(where, int) else where
    raise UserError(
        f"{path}: {place}: {f'unknown {what} {label!r}' if label else f'no {what}'}; expected {', '.join(expected)}; "
        f"{what}s found: {', '.join(repr(name) for name in names[:10])}{more}"
    )


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels that were found in a file, in the order in which they are fixed: numbers by size, words by letter."""
    labels = set(labels)
    if all(label.removeprefix("-").isdecimal() for label in labels):
        return tuple(sorted(labels, key=int))
    return tuple(sorted(labels))
