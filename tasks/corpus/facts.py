"""What choosing must know of each cleaned document, in a small file beside a unit's text: a row per document."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pyarrow
import pyarrow.parquet

from tasks.corpus.dedup import document_digest
from tasks.corpus.documents import Document

# Further columns (signatures for near duplicates, hits of benchmarks) are a field here and a value in `facts_of`.
SCHEMA = pyarrow.schema(
    [("digest", pyarrow.uint64()), ("num_words", pyarrow.int32()), ("num_sentences", pyarrow.int32())]
)
_ROWS_PER_GROUP = 1 << 16


def facts_of(document: Document) -> tuple[int, int, int]:
    """The row of one document: computed where it is cleaned, once, side by side with others."""
    return document_digest(document.sentences), document.num_words, len(document.sentences)


class FactsWriter:
    """Writes rows of facts to a Parquet file in constant memory."""

    def __init__(self, path: Path) -> None:
        self._rows: list[tuple[int, int, int]] = []
        self._file = pyarrow.parquet.ParquetWriter(path, SCHEMA, compression="zstd")

    def add(self, row: tuple[int, int, int]) -> None:
        """Append what `facts_of` gave."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS_PER_GROUP:
            self._write()

    def close(self) -> None:
        """Write what is left."""
        self._write()
        self._file.close()

    def _write(self) -> None:
        columns = list(zip(*self._rows)) or [()] * len(SCHEMA)
        arrays = [pyarrow.array(values, field.type) for values, field in zip(columns, SCHEMA)]
        self._file.write_table(pyarrow.Table.from_arrays(arrays, schema=SCHEMA))
        self._rows = []


def read_facts(file: BinaryIO | Path) -> pyarrow.Table:
    """All rows of a file of facts."""
    return pyarrow.parquet.read_table(file, schema=SCHEMA, partitioning=None)
