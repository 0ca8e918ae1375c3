"""Read tables with one text per row: Parquet, JSON Lines and CSV."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pyarrow
import pyarrow.parquet

from model.common.errors import UserError, first_line
from tasks.corpus.sources.file_chunks import Draft, FileChunk, numbered_lines, unpacked
from tasks.corpus.sources.prose import tidy_lines
from tasks.params.corpus import CsvSource, JsonlSource, ParquetSource, TableSource

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.bz2", ".ndjson")
CSV_SUFFIXES = tuple(kind + packed for kind in (".csv", ".tsv") for packed in ("", ".gz", ".bz2"))
_ROWS_PER_READ = 1024

Row = tuple[str, str, str]  # (identifier, title, text)


def read_parquet(source: ParquetSource, chunk: FileChunk, _drops: Counter[str]) -> Iterator[Row]:
    """Stream the rows of a Parquet file; for a chunk, the rows of the row groups that begin in it.

    Raises:
        UserError: the file is not a Parquet file, or a column is missing.
    """
    return _grouped(_parquet_rows(source, chunk), source.rows_per_document)


def read_jsonl(source: JsonlSource, chunk: FileChunk, drops: Counter[str]) -> Iterator[Row]:
    """Stream the rows of a file with one JSON object per line; for a chunk, the rows that begin in it.

    Raises:
        UserError: a line is not a JSON object or lacks the text column, or the file is truncated.
    """
    return _grouped(_jsonl_rows(source, chunk, drops), source.rows_per_document)


def read_csv(source: CsvSource, chunk: FileChunk, _drops: Counter[str]) -> Iterator[Row]:
    """Stream the rows of a CSV file with a header line.

    Raises:
        UserError: a column is missing, a row has more or fewer fields than the header, or the file is truncated.
    """
    return _grouped(_csv_rows(source, chunk), source.rows_per_document)


def parse(_source: TableSource, row: Row) -> Draft:
    """Split the text of a row into paragraphs, one per line."""
    identifier, title, text = row
    return Draft(identifier, title, tidy_lines((html.unescape(text) if "&" in text else text).split("\n")))


def jsonl_splits(source: Any, name: str) -> bool:
    """Check whether chunks can be read independently: no compression, row numbers or multi-row documents."""
    return name.endswith((".jsonl", ".ndjson")) and source.id_column is not None and source.rows_per_document == 1


def _check_columns(source: TableSource, known: list[str], name: str) -> None:
    for column in filter(None, [source.text_column, source.id_column, source.title_column]):
        if column not in known:
            shown = ", ".join(known[:20]) or "nothing"
            raise UserError(f"{name}: no column '{column}', only {shown}; set the source's *_column")


def _row_range(metadata: Any, chunk: FileChunk, rows_per_document: int) -> tuple[int, int]:
    """Return the first row of a chunk and the row after its last: its share, rounded to row groups and documents.

    The share is of rows, not of bytes: damaged metadata of a column makes pyarrow abort the process.
    """
    counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    starts, total = list(itertools.accumulate(counts, initial=0)), sum(counts)
    first, last = (
        sum(count for start, count in zip(starts, counts, strict=False) if start * chunk.size < byte * total)
        for byte in (chunk.start, chunk.end)
    )
    whole = [-(-row // rows_per_document) * rows_per_document for row in (first, last)]
    return whole[0], min(whole[1], total)


def _parquet_rows(source: ParquetSource, chunk: FileChunk) -> Iterator[Row]:
    columns = [column for column in (source.id_column, source.title_column, source.text_column) if column]
    number = 0  # rows read or skipped so far
    with chunk.open() as opened:
        try:
            file = pyarrow.parquet.ParquetFile(opened)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{chunk.name}: not a readable Parquet file ({first_line(error)}); download it again"
            ) from None
        _check_columns(source, file.schema_arrow.names, chunk.name)
        try:
            first, last = _row_range(file.metadata, chunk, source.rows_per_document)
            for group in range(file.num_row_groups):
                num_rows = file.metadata.row_group(group).num_rows
                if number + num_rows <= first:
                    number += num_rows
                    continue
                if number >= last:
                    return
                for batch in file.iter_batches(batch_size=_ROWS_PER_READ, row_groups=[group], columns=columns):
                    values = {column: batch.column(column).to_pylist() for column in columns}
                    for place in range(batch.num_rows):
                        number += 1
                        if not first < number <= last:
                            continue
                        identifier = values[source.id_column][place] if source.id_column else number - 1
                        title = values[source.title_column][place] if source.title_column else ""
                        text = values[source.text_column][place]
                        if text is not None and not isinstance(text, str):
                            raise UserError(
                                f"{chunk.name}: row {number}: column '{source.text_column}' contains "
                                f"{type(text).__name__}, expected text"
                            )
                        yield _text(identifier), _text(title), text or ""
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{chunk.name}: damaged after row {number:,} ({first_line(error)}); download it again"
            ) from None


def _jsonl_rows(source: JsonlSource, chunk: FileChunk, drops: Counter[str]) -> Iterator[Row]:
    name = f"{chunk.name}: after byte {chunk.start:,}" if chunk.start else chunk.name
    number = 0
    with chunk.open() as raw:
        stream = unpacked(raw, chunk.name)
        end = chunk.end if stream is raw else sys.maxsize
        try:
            for number, line in numbered_lines(stream, source.max_row_bytes, drops, chunk.start, end):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{name}: line {number}: invalid JSON ({error})") from None
                if not isinstance(row, dict) or not isinstance(row.get(source.text_column), str):
                    raise UserError(
                        f"{name}: line {number}: expected an object with text under the key '{source.text_column}'; "
                        "set the source's text_column"
                    )
                identifier = row.get(source.id_column) if source.id_column else number
                title = row.get(source.title_column) if source.title_column else ""
                yield _text(identifier), _text(title), row[source.text_column]
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(f"{name}: damaged or truncated after line {number:,}: {error}; download it again") from None


def _csv_rows(source: CsvSource, chunk: FileChunk) -> Iterator[Row]:
    name = chunk.name
    delimiter = source.delimiter or ("\t" if ".tsv" in PurePosixPath(name).name else ",")
    csv.field_size_limit(source.max_field_bytes)  # a process-wide setting, so set it right before use
    with chunk.open() as raw:
        text = io.TextIOWrapper(unpacked(raw, name), encoding="utf-8-sig", newline="")
        rows = csv.reader(
            text, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if source.quoted else csv.QUOTE_NONE, strict=True
        )
        try:
            header = next(rows, [])
            _check_columns(source, header, name)
            places = {column: place for place, column in enumerate(header)}
            for number, row in enumerate(rows, start=1):
                if len(row) != len(header):
                    if not row:
                        continue  # a blank line
                    raise UserError(
                        f"{name}: line {rows.line_num}: {len(row)} fields, expected {len(header)} as in the first "
                        "line; set the source's delimiter or quoted"
                    )
                identifier = row[places[source.id_column]] if source.id_column else str(number)
                title = row[places[source.title_column]] if source.title_column else ""
                yield identifier, title, row[places[source.text_column]]
        except csv.Error as error:
            raise UserError(
                f"{name}: line {rows.line_num}: {error}; close the quotation mark, or set quoted: false"
            ) from None
        except UnicodeDecodeError:
            raise UserError(f"{name}: near line {rows.line_num + 1}: not UTF-8; convert the file") from None
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(
                f"{name}: damaged or truncated after line {rows.line_num:,}: {error}; download it again"
            ) from None


def _grouped(rows: Iterator[Row], size: int) -> Iterator[Row]:
    """Join each `size` consecutive rows into one document, with the first row's identifier and title."""
    if size == 1:
        yield from rows
        return
    while group := list(itertools.islice(rows, size)):
        yield group[0][0], group[0][1], "\n".join(text for _, _, text in group)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
