"""Reads files with named columns (TSV, CSV, JSON lines and Parquet), and records malformed rows of any file."""

from __future__ import annotations

import collections
import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from model.common import files
from model.common.errors import UserError, shown

Row = tuple[int, list[Any]]  # number from 1 (the line number in text files), fields
_Raw = tuple[int, list[Any] | str]  # fields, or the error
_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_NUM_LISTED = 5


class MalformedRow(Exception):
    """A row that cannot be used; the message says why."""


class RowErrors:
    """Collects suspicious rows of one split, and malformed rows if it `skips` them instead of raising."""

    def __init__(self, skips: bool) -> None:
        self.skips = skips
        self._skipped: list[str] = []
        self._noted: dict[str, list[str]] = collections.defaultdict(list)
        self._ids: set[str] = set()

    @property
    def num_skipped(self) -> int:
        return len(self._skipped)

    @property
    def skipped(self) -> tuple[str, ...]:
        """The first skipped rows, each with the reason."""
        return tuple(self._skipped[:_NUM_LISTED])

    @property
    def remarks(self) -> tuple[str, ...]:
        """Summarize each kind of suspicious row that was kept in one line: their number and the first ones."""
        return tuple(
            f"{what}: {len(rows)} ({', '.join(rows[:_NUM_LISTED])}{', ...' if len(rows) > _NUM_LISTED else ''})"
            for what, rows in self._noted.items()
        )

    def malformed(self, path: Path, where: int | str, why: str, advice: str = "") -> None:
        """Skip a row that cannot be used, or raise UserError if rows may not be skipped.

        `where` is the number of the row or line, or its location in a file without rows.
        """
        if not self.skips:
            raise UserError(f"{path}: {location(path, where)}: {why}{advice}")
        self._skipped.append(f"{path.name}: {location(path, where)}: {why}")

    def note(self, path: Path, where: int | str, what: str) -> None:
        self._noted[what].append(f"{path.name}: {location(path, where)}")

    def unique_id(self, path: Path, where: int | str, row_id: str) -> str:
        """Return the row's id, and record the row if another row has the same id."""
        if row_id in self._ids:
            self.note(path, where, "rows with the name of another row")
        self._ids.add(row_id)
        return row_id


def location(path: Path, where: int | str) -> str:
    """Name a place in a file: the line, counted from 1 and with the header, or the row of a Parquet file."""
    if isinstance(where, str):
        return where
    return f"{'row' if path.suffix == '.parquet' else 'line'} {where}"


def read_text(path: Path) -> str:
    """Read a UTF-8 file without its byte-order mark. Raises UserError if it cannot be read or is not UTF-8."""
    with files.open_file(path, "; fetch the benchmark into the data folder or leave it out") as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: line {line}: not UTF-8; convert the file to UTF-8") from None


def text_lines(path: Path) -> list[str]:
    """Read the lines of a text file. Only line feeds end a line, since texts contain other separators."""
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def parse_json(path: Path, text: str, advice: str, line: int | None = None) -> Any:
    """Parse a file's text, or the text of one line. Raises UserError, whose message ends with `advice`."""
    try:
        return files.parse_json(text)
    except ValueError as error:
        where = f"line {line or getattr(error, 'lineno', 0)}: " if line or hasattr(error, "lineno") else ""
        raise UserError(f"{path}: {where}not JSON ({getattr(error, 'msg', error)}); {advice}") from None


def read_table(
    path: Path,
    ending: str,
    errors: RowErrors,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> tuple[list[str], Iterator[Row]]:
    """Open a file with named columns.

    `errors` collects rows of broken JSON, or with more or fewer columns than the header. `columns` names the columns of
    a file without a header.

    Returns:
        The column names, and the rows. A field is text, or any value of JSON and Parquet.

    Raises:
        UserError: the file is missing, empty or broken, or a needed column is missing.
    """
    rows: Iterator[_Raw]
    if ending == ".parquet":
        from model.benchmarks.readers.parquet import read_parquet

        header, names, rows = read_parquet(path, [*needed, *optional])
    elif ending in (".jsonl", ".ndjson"):
        header, rows = _json_rows(path)
        names = header
    elif ending in (".csv", ".tsv"):
        lines = _csv_rows(path) if ending == ".csv" else _tsv_rows(path)
        first = next(lines, (0, []))
        header, rows = first[1], lines
        if header and columns is not None and not set(needed) <= set(header):
            header, rows = list(columns), itertools.chain([first], lines)
        names = header
    else:
        raise UserError(f"{path}: unknown ending; expected one of {', '.join(_ENDINGS)}")
    missing = [name for name in needed if name not in names]
    if missing and not names:
        raise UserError(f"{path}: empty; expected rows with the columns {', '.join(needed)}")
    if missing:
        found = ", ".join(shown(name) for name in names[:15])
        hint = "; if a custom task's file has no header line, set `header`" if ending in (".csv", ".tsv") else ""
        where = "" if ending == ".parquet" else "line 1: "
        raise UserError(f"{path}: {where}no column {missing[0]!r}; expected {', '.join(needed)}, found {found}{hint}")
    return header, _well_formed(path, header, rows, errors)


def _well_formed(path: Path, header: list[str], rows: Iterator[_Raw], errors: RowErrors) -> Iterator[Row]:
    for number, fields in rows:
        if isinstance(fields, str):
            errors.malformed(path, number, fields, "; fix or delete the row")
        elif len(fields) != len(header):
            why = f"{len(fields)} columns where {len(header)} were expected ({', '.join(header)})"
            errors.malformed(path, number, why, "; fix or delete the row")
        else:
            yield number, fields


def _tsv_rows(path: Path) -> Iterator[Row]:
    """Quotes are ordinary characters: GLUE's files do not quote, and contain unbalanced quotes."""
    for number, line in enumerate(text_lines(path), 1):
        yield number, line.split("\t")


def _csv_rows(path: Path) -> Iterator[Row]:
    reader = csv.reader(read_text(path).splitlines(keepends=True), strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise UserError(f'{path}: line {reader.line_num}: {error}; expected a CSV file with " quotes') from None


def _json_rows(path: Path) -> tuple[list[str], Iterator[_Raw]]:
    """Read a file with one JSON object per line: the keys of all objects, and the rows; missing keys are null."""
    rows: list[tuple[int, dict[str, Any] | str]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            rows.append((number, _json_object(line)))
    header = list(dict.fromkeys(key for _, row in rows if isinstance(row, dict) for key in row))
    if rows and not header:
        raise UserError(
            f"{path}: line {rows[0][0]}: {rows[0][1] or 'an empty object'}; expected an object on each line"
        )
    fields = ((number, row if isinstance(row, str) else [row.get(key) for key in header]) for number, row in rows)
    return header, fields


def _json_object(line: str) -> dict[str, Any] | str:
    try:
        value = files.parse_json(line)
    except ValueError as error:
        return f"not JSON ({getattr(error, 'msg', error)})"
    return value if isinstance(value, dict) else f"a JSON {type(value).__name__} where an object was expected"
