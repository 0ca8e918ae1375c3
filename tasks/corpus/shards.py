"""Read and write the corpus: Parquet files of bounded size with one document per row, and a deterministic layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from model.common.errors import UserError

SCHEMA = pyarrow.schema(
    [
        ("source", pyarrow.string()),
        ("id", pyarrow.string()),
        ("title", pyarrow.string()),
        ("sentences", pyarrow.list_(pyarrow.string())),
    ]
)
SHARD_PREFIX = "train-"  # the hub's name for the files of a split; `datasets` reads only these files
ROW_GROUP_CHARACTERS = 4 << 20  # per row group, which tokenization reads at a time


def table_of(rows: Sequence[tuple[Any, ...]], schema: pyarrow.Schema) -> pyarrow.Table:
    columns: Iterable[Any] = zip(*rows) if rows else [()] * len(schema)
    return pyarrow.Table.from_arrays(
        [pyarrow.array(values, field.type) for values, field in zip(columns, schema)], schema=schema
    )


class ShardWriter:
    """Writes documents to `train-00000.parquet`, `train-00001.parquet` and so on in a folder."""

    def __init__(self, directory: Path, shard_bytes: int, prefix: str = SHARD_PREFIX) -> None:
        self._directory = directory
        self._prefix = prefix
        self._shard_bytes = shard_bytes
        self._rows: list[tuple[str, str, str, list[str]]] = []
        self._num_characters = 0
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self.paths: list[Path] = []
        self.num_documents: list[int] = []
        """Number of documents in each file of `paths`."""
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, source: str, identifier: str, title: str, sentences: list[str]) -> None:
        self._rows.append((source, identifier, title, sentences))
        self._num_characters += sum(map(len, sentences))
        if self._num_characters >= ROW_GROUP_CHARACTERS:
            self._write_rows()

    def close(self) -> None:
        """Write the remaining documents. A corpus without documents has one empty file."""
        if self._rows or not self.paths:
            self._write_rows()
        if self._writer is not None:
            self._writer.close()

    def _write_rows(self) -> None:
        if self._writer is None:
            self.paths.append(self._directory / f"{self._prefix}{len(self.paths):05d}.parquet")
            self.num_documents.append(0)
            self._writer = pyarrow.parquet.ParquetWriter(self.paths[-1], SCHEMA, compression="zstd")
        self._writer.write_table(table_of(self._rows, SCHEMA))
        self.num_documents[-1] += len(self._rows)
        self._rows, self._num_characters = [], 0
        if self.paths[-1].stat().st_size >= self._shard_bytes:
            self._writer.close()
            self._writer = None


def shard_paths(corpus_dir: Path) -> list[Path]:
    """List the files of the corpus in order.

    Raises:
        UserError: the folder has no Parquet files.
    """
    paths = sorted(corpus_dir.glob("*.parquet"))
    if not paths:
        raise UserError(f"{corpus_dir}: no Parquet files; run the corpus stage first (`cloze corpus`)")
    return paths


def row_groups(corpus_dir: Path) -> list[tuple[Path, int]]:
    """List all row groups of the corpus as (file, row group number), in order.

    Raises:
        UserError: the folder has no Parquet files, or a file is not readable or has no column `sentences`.
    """
    groups = []
    for path in shard_paths(corpus_dir):
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                columns, num_groups = file.schema_arrow.names, file.num_row_groups
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise UserError(f"{path}: not a readable Parquet file ({error}); run the corpus stage again") from None
        if "sentences" not in columns:
            raise UserError(f"{path}: no column 'sentences', only {', '.join(columns)}; run the corpus stage again")
        groups += [(path, group) for group in range(num_groups)]
    return groups


def read_sentences(path: Path, row_group: int) -> pyarrow.ListArray:
    return _read_column(path, row_group, "sentences").combine_chunks()


def read_sources(path: Path, row_group: int) -> list[str]:
    """Return the name of each document's source."""
    names: list[str] = _read_column(path, row_group, "source").to_pylist()
    return names


def _read_column(path: Path, row_group: int, name: str) -> pyarrow.ChunkedArray:
    with pyarrow.parquet.ParquetFile(path) as file:
        return file.read_row_group(row_group, columns=[name]).column(0)


def utf8_of(strings: pyarrow.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the memory of a string array: (num_bytes,) uint8 UTF-8, and (num_strings + 1,) offsets into it."""
    _, offsets, content = strings.buffers()
    size = np.dtype(np.int32 if pyarrow.types.is_string(strings.type) else np.int64)
    borders = np.frombuffer(offsets, dtype=size, count=len(strings) + 1, offset=strings.offset * size.itemsize)
    return np.frombuffer(content or b"", dtype=np.uint8), borders


def read_documents(paths: list[Path], columns: Sequence[str] = SCHEMA.names) -> Iterator[tuple[Any, ...]]:
    """Yield the given columns (by default source, id, title, sentences) of every document, in order."""
    for path in paths:
        with pyarrow.parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=list(columns))
                yield from zip(*(column.to_pylist() for column in table.columns))
