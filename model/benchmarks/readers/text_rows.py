"""Sentences, pairs and choices from files with columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from model.benchmarks.readers.examples import ChoiceExample, TextExample
from model.benchmarks.readers.labels import Labels
from model.benchmarks.readers.row_faults import Faults, Malformed
from model.benchmarks.readers.rows import Row, Table
from model.benchmarks.sources import Source


def text_of(value: Any, column: str) -> str:
    """A field as text.

    Raises:
        Malformed: it is null or a list.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        found = "null" if value is None else type(value).__name__
        raise Malformed(f"expected text in column {column!r}, found {found}")
    return str(value)


class RowReader(ABC):
    """What reading the files of one part into examples has in common: names of rows, empty texts, faults."""

    def __init__(self, source: Source, faults: Faults, training: bool, labelled: bool) -> None:
        self.row = source.row
        self.faults = faults
        self.examples: list[Any] = []
        self._training = training
        self._labelled = labelled
        self._ending = source.ending
        for path in source.paths:
            self._read(path)

    def _read(self, path: Path) -> None:
        needed, optional = self._columns()
        (needed if self._labelled else optional).append(self.row.label)
        self.table = Table(path, needed, [*optional, self.row.identity or ""], self.row.columns, self._ending)
        self.at = {name: number for number, name in enumerate(self.table.header)}
        self._identity = self.table.column(self.row.identity)
        label = self.table.column(self.row.label)
        self.labels = Labels(self.row, path, label, self.faults, withheld=not self._labelled)
        for row in self.table.rows(self.faults):
            try:
                self.examples.append(self._example(row))
            except Malformed as error:
                self.faults.malformed(path, row[0], str(error))
        self.labels.check()

    @abstractmethod
    def _columns(self) -> tuple[list[str], list[str]]:
        """Columns that must be there, and those that may be, beside the label and the name."""

    @abstractmethod
    def _example(self, row: Row) -> Any:
        """What a row says. Raises Malformed."""

    def name(self, row: Row) -> str:
        """The row's name: what its column says, else its number."""
        name = None if self._identity is None else row[1][self._identity]
        if name is None:
            return str(len(self.examples))
        return self.faults.identity(self.table.path, row[0], str(name))

    def text(self, row: Row, column: str) -> str:
        """A field that has to be text.

        Raises:
            Malformed: it is none, or it is empty and such rows are skipped.
        """
        text = text_of(row[1][self.at[column]], column)
        if not text or text.isspace():
            if self.faults.skips and self.row.skips_empty:
                raise Malformed(f"an empty text in column {column!r}")
            self.faults.note(self.table.path, row[0], f"rows with an empty text in column {column!r}")
        return text


class TextReader(RowReader):
    """Sentences and pairs with a class or a score."""

    def _columns(self) -> tuple[list[str], list[str]]:
        return [self.row.first] + ([self.row.second] if self.row.second else []), []

    def _example(self, row: Row) -> TextExample:
        first = self.text(row, self.row.first)
        second = self.text(row, self.row.second) if self.row.second else None
        label = self.labels.of(row)
        return TextExample(self.name(row), first, second, label)


class ChoiceReader(RowReader):
    """Contexts with endings; what all endings begin with, where there is such a column, is put before each."""

    def _columns(self) -> tuple[list[str], list[str]]:
        return [self.row.first, *([self.row.second] if self.row.second else []), *self.row.endings], []

    def _example(self, row: Row) -> ChoiceExample:
        context = self.text(row, self.row.first)
        start = text_of(row[1][self.at[self.row.second]], self.row.second) if self.row.second else ""
        endings = tuple(f"{start} {ending}".strip() for ending in self._endings(row))
        if not all(endings):
            self.faults.note(self.table.path, row[0], "rows with an empty ending")
        label = self.labels.index_of(row)
        return ChoiceExample(self.name(row), context, endings, label)

    def _endings(self, row: Row) -> list[str]:
        fields = [(name, row[1][self.at[name]]) for name in self.row.endings]
        if len(fields) == 1:
            name, value = fields[0]
            if not isinstance(value, list):
                raise Malformed(f"expected a list of endings in column {name!r}, found {type(value).__name__}")
            fields = [(name, ending) for ending in value]
        if len(fields) != len(self.row.labels):
            raise Malformed(f"{len(fields)} endings where {len(self.row.labels)} were expected")
        return [text_of(value, name) for name, value in fields]
