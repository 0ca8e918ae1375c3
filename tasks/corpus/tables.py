"""Rows that hold a text each: Parquet, JSON lines, comma-separated values."""

from __future__ import annotations

import bz2
import csv
import gzip
import html
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet

from model.errors import UserError
from tasks.corpus.documents import CHUNK_BYTES, Chunk, Draft
from tasks.corpus.prose import tidy
from tasks.corpus.settings import CsvSource, JsonlSource, ParquetSource, TableSource

PARQUET_SUFFIXES = (".parquet",)
JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.bz2", ".ndjson")
CSV_SUFFIXES = tuple(kind + packed for kind in (".csv", ".tsv") for packed in ("", ".gz", ".bz2"))
_ROWS_PER_READ = 1024

Row = tuple[str, str, str]  # identifier, title, text


def read_parquet_chunks(source: ParquetSource, path: Path, name: str) -> Iterator[Chunk]:
    """The rows of a Parquet file, streamed.

    Raises:
        UserError: it is no Parquet file, or lacks a column.
    """
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{name}: no readable Parquet file ({_first_line(error)}); download it again") from None
    with file:
        known = file.schema_arrow.names
        for column in filter(None, [source.text_column, source.id_column, source.title_column]):
            if column not in known:
                raise UserError(f"{name}: no column '{column}', only {', '.join(known)}; set the source's *_column")
        yield from _chunks(source, _parquet_rows(source, file, name), name, path.stat().st_size)


def read_jsonl_chunks(source: JsonlSource, path: Path, name: str) -> Iterator[Chunk]:
    """The rows of a file with a JSON object per line, streamed.

    Raises:
        UserError: a line is no JSON object or lacks the text's key, or the file is cut off.
    """
    with path.open("rb") as raw:
        yield from _chunks(source, _jsonl_rows(source, raw, name), name, path.stat().st_size)


def read_csv_chunks(source: CsvSource, path: Path, name: str) -> Iterator[Chunk]:
    """The rows of a file whose first line names its columns, streamed.

    Raises:
        UserError: a column is missing, a row has more or fewer fields than the first line, or the file is cut off.
    """
    with path.open("rb") as raw:
        yield from _chunks(source, _csv_rows(source, raw, name), name, path.stat().st_size)


def parse(source: TableSource, row: Row, _chunk: Chunk) -> Draft:
    """The paragraphs of one row: its lines."""
    text = html.unescape(row[2]) if "&" in row[2] else row[2]
    paragraphs = [tidy(line) for line in text.split("\n")]
    return Draft(row[0], row[1], [paragraph for paragraph in paragraphs if paragraph])


def _parquet_rows(source: ParquetSource, file: Any, name: str) -> Iterator[tuple[Row, float]]:
    columns = [column for column in (source.id_column, source.title_column, source.text_column) if column]
    done = 0
    total = max(1, file.metadata.num_rows)
    try:
        for batch in file.iter_batches(batch_size=_ROWS_PER_READ, columns=columns):
            values = {column: batch.column(column).to_pylist() for column in columns}
            for place in range(batch.num_rows):
                identifier = values[source.id_column][place] if source.id_column else done
                title = values[source.title_column][place] if source.title_column else ""
                text = values[source.text_column][place]
                if text is not None and not isinstance(text, str):
                    raise UserError(
                        f"{name}: row {done + 1}: column '{source.text_column}' holds {type(text).__name__}, "
                        "expected text"
                    )
                done += 1
                yield (_text(identifier), _text(title), text or ""), done / total
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{name}: damaged after row {done:,} ({_first_line(error)}); download it again") from None


def _jsonl_rows(source: JsonlSource, raw: BinaryIO, name: str) -> Iterator[tuple[Row, float]]:
    stream: Iterable[bytes] = _unpacked(raw, name)
    total = max(1, Path(raw.name).stat().st_size)
    number = 0
    try:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UserError(f"{name}: line {number}: no JSON ({error})") from None
            if not isinstance(row, dict) or not isinstance(row.get(source.text_column), str):
                raise UserError(
                    f"{name}: line {number}: expected an object with a text under '{source.text_column}'; "
                    "set the source's text_column"
                )
            identifier = row.get(source.id_column) if source.id_column else number
            title = row.get(source.title_column) if source.title_column else ""
            yield (_text(identifier), _text(title), row[source.text_column]), raw.tell() / total
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{name}: damaged or cut off after line {number:,} ({error}); download it again") from None


def _csv_rows(source: CsvSource, raw: BinaryIO, name: str) -> Iterator[tuple[Row, float]]:
    total = max(1, Path(raw.name).stat().st_size)
    delimiter = source.delimiter or ("\t" if ".tsv" in Path(name).name else ",")
    text = io.TextIOWrapper(_unpacked(raw, name), encoding="utf-8-sig", newline="")
    csv.field_size_limit(source.max_field_bytes)  # the process's own, so it is set where it is used
    rows = csv.reader(
        text, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if source.quoted else csv.QUOTE_NONE, strict=True
    )
    try:
        header = next(rows, [])
        for column in filter(None, [source.text_column, source.id_column, source.title_column]):
            if column not in header:
                known = ", ".join(header[:20]) or "nothing"
                raise UserError(f"{name}: no column '{column}', only {known}; set the source's *_column")
        places = {column: place for place, column in enumerate(header)}
        for number, row in enumerate(rows, start=1):
            if len(row) != len(header):
                if not row:
                    continue  # a blank line
                raise UserError(
                    f"{name}: line {rows.line_num}: {len(row)} fields, expected {len(header)} as in the first line; "
                    "set the source's delimiter or quoted"
                )
            identifier = row[places[source.id_column]] if source.id_column else str(number)
            title = row[places[source.title_column]] if source.title_column else ""
            yield (identifier, title, row[places[source.text_column]]), raw.tell() / total
    except csv.Error as error:
        raise UserError(
            f"{name}: line {rows.line_num}: {error}; a quotation mark is open, or quoted is not so"
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{name}: near line {rows.line_num + 1}: not UTF-8; convert the file") from None
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(
            f"{name}: damaged or cut off after line {rows.line_num:,} ({error}); download it again"
        ) from None


def _unpacked(raw: BinaryIO, name: str) -> Any:
    """The bytes of a file that may be packed, by its name."""
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    return bz2.BZ2File(raw) if name.endswith(".bz2") else raw


def _chunks(source: TableSource, rows: Iterator[tuple[Row, float]], name: str, size: int) -> Iterator[Chunk]:
    items: list[Row] = []
    num_bytes = 0
    share = 1.0
    for row, share in _grouped(rows, source.rows_per_document):
        items.append(row)
        num_bytes += len(row[2])
        if num_bytes >= CHUNK_BYTES:
            yield Chunk(items, name, int(share * size))
            items, num_bytes = [], 0
    yield Chunk(items, name, size)


def _grouped(rows: Iterator[tuple[Row, float]], size: int) -> Iterator[tuple[Row, float]]:
    """Documents of `size` consecutive rows, under the first one's identifier and title."""
    if size == 1:
        yield from rows
        return
    group: list[Row] = []
    share = 1.0
    for row, share in rows:
        group.append(row)
        if len(group) == size:
            yield (group[0][0], group[0][1], "\n".join(text for _, _, text in group)), share
            group = []
    if group:
        yield (group[0][0], group[0][1], "\n".join(text for _, _, text in group)), share


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
