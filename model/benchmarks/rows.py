"""Rows of the TSV and CSV files in which GLUE and SWAG come: columns by name, faults by file and row."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from model.errors import UserError

Row = tuple[int, list[str]]  # line number in the file, from 1; fields


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, its line ends untouched and without a byte-order mark.

    Raises:
        UserError: the file is missing or not UTF-8.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file; fetch the benchmark into the data folder or leave it out") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder where a file was expected") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: row {row}: not UTF-8; convert the file to UTF-8") from None


def tsv_rows(path: Path) -> Iterator[Row]:
    """Rows of a TSV file. Quotes are letters: GLUE's files do not quote, and hold unbalanced ones."""
    lines = read_text(path).split("\n")  # not splitlines: texts hold other characters that it would break at
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\r").split("\t")


def csv_rows(path: Path) -> Iterator[Row]:
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


class Table:
    """The rows of a file below its header.

    `needed` are the columns that must be there; `columns` names them for files without a header.

    Raises:
        UserError: the file is empty or a needed column is missing.
    """

    def __init__(
        self, path: Path, rows: Iterator[Row], needed: Sequence[str], columns: Sequence[str] | None = None
    ) -> None:
        self.path = path
        self._rows = rows
        first = next(rows, None)
        if first is None:
            raise UserError(f"{path}: empty; expected rows with the columns {', '.join(needed)}")
        self._pending: list[Row] = []
        self.header = list(first[1])
        if columns is not None and not set(needed) <= set(self.header):
            self.header = list(columns)
            self._pending.append(first)
        missing = [name for name in needed if name not in self.header]
        if missing:
            found = ", ".join(repr(name) for name in self.header[:15])
            raise UserError(f"{path}: row 1: no column {missing[0]!r}; expected {', '.join(needed)}, found {found}")

    def column(self, name: str | None) -> int | None:
        """The index of a column, or None."""
        return self.header.index(name) if name is not None and name in self.header else None

    def rows(self, skip_malformed: bool = False) -> Iterator[Row | None]:
        """The rows; None stands for a malformed one that was skipped.

        Raises:
            UserError: a row has more or fewer columns than the header, and `skip_malformed` is off.
        """
        width = len(self.header)
        pending, self._pending = self._pending, []
        for rows in (pending, self._rows):
            for number, fields in rows:
                if len(fields) == width:
                    yield number, fields
                elif skip_malformed:
                    yield None
                else:
                    raise UserError(
                        f"{self.path}: row {number}: {len(fields)} columns where {width} were expected "
                        f"({', '.join(self.header)}); mend or delete the row"
                    )
