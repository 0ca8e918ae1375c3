"""Rows of files with named columns: TSV, CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from model.benchmarks.readers.row_errors import RowErrors
from model.common.errors import UserError

Row = tuple[int, list[Any]]  # number from 1 (of the line, in text files), fields
_Raw = tuple[int, list[Any] | str]  # fields, or the error
_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file without its byte-order mark; line ends are kept.

    Raises:
        UserError: the file is missing or not UTF-8.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file; fetch the benchmark into the data folder or leave it out") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; expected a file") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: row {row}: not UTF-8; convert the file to UTF-8") from None


class Table:
    """The rows of a file. A field is text, or any value of JSON and Parquet.

    Args:
        path: the file; its extension determines the format.
        needed: required columns.
        optional: columns to read if they exist.
        columns: column names of a file without a header.
        ending: the format, in place of the file's extension.

    Raises:
        UserError: the file is missing, empty or broken, or a needed column is missing.
    """

    def __init__(
        self,
        path: Path,
        needed: Sequence[str],
        optional: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        ending: str = "",
    ) -> None:
        self.path = path
        ending = ending or path.suffix
        self._pending: list[Row] = []
        self._rows: Iterator[_Raw]
        if ending == ".parquet":
            from model.benchmarks.readers.parquet import read_parquet

            self.header, names, self._rows = read_parquet(path, [*needed, *optional])
        elif ending in (".jsonl", ".ndjson"):
            self.header, self._rows = _json_rows(path)
            names = self.header
        elif ending in (".csv", ".tsv"):
            self._rows = csv_rows(path) if ending == ".csv" else tsv_rows(path)
            self.header = names = self._first_row(needed, columns)
        else:
            raise UserError(f"{path}: unknown ending; expected one of {', '.join(_ENDINGS)}")
        missing = [name for name in needed if name not in names]
        if missing and not names:
            raise UserError(f"{path}: empty; expected rows with the columns {', '.join(needed)}")
        if missing:
            shown = ", ".join(repr(name) for name in names[:15])
            raise UserError(f"{path}: row 1: no column {missing[0]!r}; expected {', '.join(needed)}, found {shown}")

    def _first_row(self, needed: Sequence[str], columns: Sequence[str] | None) -> list[str]:
        first = next(self._rows, None)
        if first is None:
            return []
        assert isinstance(first[1], list)
        if columns is not None and not set(needed) <= set(first[1]):
            self._pending.append((first[0], first[1]))
            return list(columns)
        return list(first[1])

    def column(self, name: str | None) -> int | None:
        """The index of a column, or None."""
        return self.header.index(name) if name is not None and name in self.header else None

    def rows(self, errors: RowErrors) -> Iterator[Row]:
        """Yield the rows; `errors` collects rows of broken JSON or with more or fewer columns than the header."""
        yield from self._pending
        width = len(self.header)
        for number, fields in self._rows:
            if isinstance(fields, str):
                errors.malformed(self.path, number, fields, "; fix or delete the row")
            elif len(fields) != width:
                why = f"{len(fields)} columns where {width} were expected ({', '.join(self.header)})"
                errors.malformed(self.path, number, why, "; fix or delete the row")
            else:
                yield number, fields


def tsv_rows(path: Path) -> Iterator[_Raw]:
    """Rows of a TSV file. Quotes are ordinary characters: GLUE's files do not quote, and contain unbalanced quotes."""
    lines = read_text(path).split("\n")  # not splitlines: texts contain other separators
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\r").split("\t")


def csv_rows(path: Path) -> Iterator[_Raw]:
    """Rows of a CSV file with quoting.

    Raises:
        UserError: the quoting is broken.
    """
    reader = csv.reader(read_text(path).splitlines(keepends=True), strict=True)
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise UserError(f'{path}: row {reader.line_num}: {error}; expected a CSV file with " quotes') from None
        if fields is None:
            return
        if fields:
            yield reader.line_num, fields


def _json_rows(path: Path) -> tuple[list[str], Iterator[_Raw]]:
    """The keys of all objects and the rows of a file with one JSON object per line; missing keys are null."""
    rows: list[tuple[int, dict[str, Any] | str]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            rows.append((number, _json_object(line)))
    header = list(dict.fromkeys(key for _, row in rows if isinstance(row, dict) for key in row))
    if rows and not header:
        raise UserError(f"{path}: row {rows[0][0]}: {rows[0][1] or 'an empty object'}; expected an object on each line")
    fields = ((number, row if isinstance(row, str) else [row.get(key) for key in header]) for number, row in rows)
    return header, fields


def _json_object(line: str) -> dict[str, Any] | str:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg})"
    return value if isinstance(value, dict) else f"a JSON {type(value).__name__} where an object was expected"
