"""Document features: what selection needs to know of each cleaned document, one row per document, without its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.parquet

from tasks.corpus.filters.dedup import document_digest
from tasks.corpus.filters.near_duplicates import signature_of
from tasks.corpus.sources.file_chunks import Document
from tasks.corpus.sources.prose import num_words
from tasks.params.corpus import CorpusSettings

# Null where the settings do not ask for it: the signature, and what is known of each sentence.
SCHEMA = pyarrow.schema(
    [
        ("digest", pyarrow.uint64()),
        ("num_words", pyarrow.int32()),
        ("num_sentences", pyarrow.int32()),
        ("signature", pyarrow.binary()),
        ("sentence_digests", pyarrow.list_(pyarrow.uint64())),
        ("sentence_words", pyarrow.list_(pyarrow.int32())),
    ]
)
_ROWS_PER_GROUP = 1 << 14

Row = tuple[Any, ...]


def features_of(document: Document, settings: CorpusSettings) -> Row:
    """The row of one document: computed where it is cleaned, once, side by side with others."""
    signature = digests = words = None
    if settings.near_duplicates is not None:
        signature = signature_of(document.hashed.words, settings.near_duplicates).tobytes()
    if settings.gates.max_documents_with_sentence is not None:
        digests = document.hashed.sentence_digests
        words = list(map(num_words, document.sentences))
    digest = document_digest(document.sentences)
    return digest, document.num_words, len(document.sentences), signature, digests, words


class FeaturesWriter:
    """Writes rows of features to a Parquet file in constant memory."""

    def __init__(self, path: Path) -> None:
        self._rows: list[Row] = []
        self._file = pyarrow.parquet.ParquetWriter(path, SCHEMA, compression="zstd")

    def add(self, row: Row) -> None:
        """Append what `features_of` gave."""
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


def read_features(file: BinaryIO | Path) -> pyarrow.Table:
    """All rows of a file of facts."""
    return pyarrow.parquet.read_table(file, schema=SCHEMA, partitioning=None)


def signatures_of(features: pyarrow.Table) -> np.ndarray:
    """(num_documents, num_hashes) uint8, of features that have signatures."""
    rows = features.column("signature").to_pylist()
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1)
