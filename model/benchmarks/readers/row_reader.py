"""Reads files with columns and converts their labels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NoReturn

from model.benchmarks.readers.examples import Example
from model.benchmarks.readers.rows import MalformedRow, Row, RowErrors, location, read_table
from model.benchmarks.sources import SourceFiles
from model.benchmarks.table import Benchmark
from model.common.errors import UserError, shown


class RowReader:
    """Reads the files of one split into `examples`; handles columns, row ids, labels, empty texts, and row errors.

    If `labeled`, the label column is required. `convert` makes an example of a row, or raises MalformedRow; `noun` is
    the word for a label in messages.
    """

    def __init__(
        self,
        source: SourceFiles,
        errors: RowErrors,
        labeled: bool,
        convert: Callable[[RowReader, Row], Example],
        noun: str,
    ) -> None:
        self.row = source.row
        self.errors = errors
        self.labeled = labeled
        self.examples: list[Example] = []
        self.spell = label_speller(self.row)
        self._label_index = {label: number for number, label in enumerate(self.row.labels)}
        needed = [self.row.first, *([self.row.second] if self.row.second else []), *self.row.endings]
        optional = [self.row.answer_start or "", self.row.identity or ""]
        (needed if labeled else optional).append(self.row.label)
        for path in source.paths:
            header, rows = read_table(path, source.ending, errors, needed, optional, self.row.columns)
            self.path = path
            self.at = {name: number for number, name in enumerate(header)}
            self._labels_found: set[str] = set()
            self._unknown: tuple[int, str] | None = None
            for row in rows:
                try:
                    self.examples.append(convert(self, row))
                except MalformedRow as error:
                    errors.malformed(path, row[0], str(error))
            if self._unknown is not None:
                refuse_labels(path, *self._unknown, self.row.labels, self._labels_found, noun)

    def field(self, row: Row, column: str | None) -> Any:
        return row[1][self.at[column]] if column in self.at else None

    def id_of(self, row: Row) -> str:
        """Return the row's id, or its number from 0 if there is no id column."""
        value = self.field(row, self.row.identity)
        if value is None:
            return str(len(self.examples))
        return self.errors.unique_id(self.path, row[0], str(value))

    def text(self, row: Row, column: str) -> str:
        """Return the text of a column. Raises MalformedRow for other types, and for empty texts if they are skipped."""
        text = text_of(row[1][self.at[column]], column)
        if not text or text.isspace():
            if self.errors.skips and self.row.skips_empty:
                raise MalformedRow(f"an empty text in column {column!r}")
            self.errors.note(self.path, row[0], f"rows with an empty text in column {column!r}")
        return text

    def label(self, row: Row) -> int | None:
        """Return the index of the row's label in the benchmark's labels; None if it is withheld, as in test files.

        Raises:
            MalformedRow: rows may be skipped, and the label is missing or marks annotator disagreement.
        """
        label = self.spell(self.field(row, self.row.label))
        if not self.labeled and label in ("", "-1"):
            return None
        if self.errors.skips and label == self.row.unlabelled:
            raise MalformedRow(f"the label {shown(label)}: annotators disagreed")
        if self.errors.skips and not label:
            raise MalformedRow("no label")
        self.check_labels(row, [label])
        return self._label_index.get(label)

    def check_labels(self, row: Row, labels: Iterable[str]) -> None:
        """Record the labels of a row. The first unknown label raises an error after the whole file is read."""
        for label in labels:
            self._labels_found.add(label)
            if self._label_index and label not in self._label_index and self._unknown is None:
                self._unknown = (row[0], label)


def label_speller(row: Benchmark) -> Callable[[Any], str]:
    """Return a function that converts label fields to the benchmark's spelling; missing labels become "".

    Label numbers become class names if the file or the benchmark defines names.
    """
    names = tuple(row.classes)

    def spell(value: Any) -> str:
        label = value if isinstance(value, str) else spelled(value)
        if names and label not in row.classes and label.isdecimal() and len(label) < 10 and int(label) < len(names):
            label = names[int(label)]
        return row.classes.get(label, label)

    return spell


def spelled(value: Any) -> str:
    """Format a label as text: whole numbers without a decimal point, booleans in lower case, null as ""."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def text_of(value: Any, column: str) -> str:
    """Convert a field to text. Raises MalformedRow for null and lists."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        found = "null" if value is None else type(value).__name__
        raise MalformedRow(f"expected text in column {column!r}, found {found}")
    return str(value)


def refuse_labels(
    path: Path, where: int, label: str, expected: Iterable[str], found: Collection[str], noun: str = "label"
) -> NoReturn:
    """Raise UserError for an unexpected label; the message lists the labels in the file."""
    wrong = f"unknown {noun} {shown(label)}" if label else f"no {noun}"
    known = ", ".join(map(shown, sorted(found)[:10]))
    more = f" and {len(found) - 10} more" if len(found) > 10 else ""
    place = location(path, where)
    raise UserError(f"{path}: {place}: {wrong}; expected {', '.join(expected)}; {noun}s found: {known}{more}")
