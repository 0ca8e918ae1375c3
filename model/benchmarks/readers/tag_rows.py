"""Sentences with a tag per word: from files with a word per line, or from columns of words and of tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.benchmarks.readers import conll
from model.benchmarks.readers.examples import TagExample
from model.benchmarks.readers.labels import refuse_labels
from model.benchmarks.readers.row_faults import Faults, Malformed
from model.benchmarks.readers.rows import Row
from model.benchmarks.readers.text_rows import RowReader
from model.benchmarks.scoring.entities import to_iob2
from model.benchmarks.sources import Source

LINE_ENDINGS = (".txt", ".conll")
_CONLL_COLUMNS = 4


def read_lines(source: Source, faults: Faults) -> list[TagExample]:
    """Sentences of files with a word per line; see `conll.read_sentences`."""
    row = source.row
    num_columns = None if row.skips_malformed else _CONLL_COLUMNS
    examples: list[TagExample] = []
    for path in source.paths:
        examples += conll.read_sentences(
            path, row.labels or None, faults, entities=row.has_entities, num_columns=num_columns
        )
    return examples


class TagReader(RowReader):
    """A column of words and one of tags: lists (as JSON lines and Parquet have them), or text with blanks between."""

    def _columns(self) -> tuple[list[str], list[str]]:
        return [self.row.first], []

    def _read(self, path: Path) -> None:
        self._found: set[str] = set()
        self._unknown: tuple[int, str] | None = None
        super()._read(path)
        if self._unknown is not None:
            refuse_labels(path, *self._unknown, self.row.labels, self._found, "tag")

    def _example(self, row: Row) -> TagExample:
        words = [str(word) for word in self._items(row, self.row.first)]
        if not words:
            raise Malformed(f"no words in column {self.row.first!r}")
        if self.row.label not in self.at or (row[1][self.at[self.row.label]] is None and not self._labelled):
            return TagExample(self.name(row), tuple(words), ())
        tags = [self.labels.spelling.of(tag) for tag in self._items(row, self.row.label)]
        if len(tags) != len(words):
            raise Malformed(f"{len(tags)} tags for {len(words)} words")
        self._found |= set(tags)
        unknown = [tag for tag in tags if self.row.labels and tag not in self.row.labels]
        if unknown and self._unknown is None:
            self._unknown = (row[0], unknown[0])
        return TagExample(self.name(row), tuple(words), tuple(to_iob2(tags) if self.row.has_entities else tags))

    def _items(self, row: Row, column: str) -> list[Any]:
        value = row[1][self.at[column]]
        if isinstance(value, str):
            return value.split()
        if not isinstance(value, list):
            raise Malformed(f"expected a list in column {column!r}, found {type(value).__name__}")
        return value
