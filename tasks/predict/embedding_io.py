"""Stream embeddings to a file or a pipe: JSON lines, .npy, .safetensors or Parquet.

The number of embeddings is not known in advance, so the headers of .npy and .safetensors are rewritten at the end, in
space reserved for them. A file is written completely or not at all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from model.common.errors import UserError
from model.common.files import atomic_file

Chunk = tuple[Sequence[str], np.ndarray]  # texts, and (texts, width) float32

_HEAD_BYTES = 256  # .safetensors header: eight bytes for the length, then JSON padded with spaces
_DIGITS = 7  # significant digits in JSON lines, enough for float32


class _Writer(Protocol):
    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None: ...

    def close(self) -> None: ...


def write_vectors(path: Path | None, chunks: Iterable[Chunk], width: int) -> int:
    """Write all vectors in order and return their number.

    Args:
        path: output file; the suffix selects the format (.jsonl, .npy, .safetensors with the tensor `vectors`, or
            .parquet with the columns `text` and `vector`). None writes JSON lines to standard output.
        chunks: texts and their vectors.
        width: embedding dimension.

    Raises:
        UserError: the suffix is not supported.
    """
    if path is None:
        return _write(_JsonLines(None, width), chunks)
    if path.suffix not in _WRITERS:
        raise UserError(f"{path}: expected a file that ends in {', '.join(_WRITERS)}")
    with replaced(path) as partial:
        return _write(_WRITERS[path.suffix](partial, width), chunks)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary file next to `path`, which replaces `path` if the block succeeds.

    Raises:
        UserError: the directory does not exist.
    """
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such directory; create it, or choose another path")
    with atomic_file(path) as partial:
        yield partial


def _write(writer: _Writer, chunks: Iterable[Chunk]) -> int:
    count = 0
    try:
        for texts, vectors in chunks:
            writer.add(texts, vectors)
            count += len(vectors)
    finally:
        writer.close()
    return count


class _JsonLines:
    """One {"text": ..., "vector": [...]} per line."""

    def __init__(self, path: Path | None, _width: int) -> None:
        self._file: BinaryIO = path.open("wb") if path else sys.stdout.buffer

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        lines = []
        for text, vector in zip(texts, vectors, strict=True):
            numbers = ", ".join([f"{value:.{_DIGITS}g}" for value in vector.tolist()])
            lines.append(f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": [{numbers}]}}\n')
        self._file.write("".join(lines).encode())
        self._file.flush()

    def close(self) -> None:
        if self._file is not sys.stdout.buffer:
            self._file.close()


class _Raw:
    """(rows, width) little-endian float32 after a header that is rewritten at the end."""

    def __init__(self, path: Path, width: int) -> None:
        self._file = path.open("w+b")
        self._width = width
        self._rows = 0
        self._write_head()
        self._begin = self._file.tell()

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self._file.write(vectors.astype("<f4", copy=False).tobytes())
        self._rows += len(vectors)

    def close(self) -> None:
        self._file.seek(0)
        self._write_head()
        assert self._file.tell() == self._begin, "the header has grown"
        self._file.close()

    def _write_head(self) -> None:
        raise NotImplementedError


class _Numpy(_Raw):
    def _write_head(self) -> None:
        head = {"descr": "<f4", "fortran_order": False, "shape": (self._rows, self._width)}
        np.lib.format.write_array_header_1_0(self._file, head)  # reserves space for a larger first dimension


class _Safetensors(_Raw):
    def _write_head(self) -> None:
        shape = [self._rows, self._width]
        vectors = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * self._rows * self._width]}
        head = json.dumps({"vectors": vectors}).encode().ljust(_HEAD_BYTES - 8)
        self._file.write(len(head).to_bytes(8, "little") + head)


class _Parquet:
    """Columns `text` and `vector`; one row group per chunk."""

    def __init__(self, path: Path, width: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._width = width
        self._schema = pa.schema([("text", pa.string()), ("vector", pa.list_(pa.float32(), width))])
        self._writer: Any = pq.ParquetWriter(path, self._schema, compression="zstd")

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        import pyarrow as pa

        flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
        columns = [pa.array(texts, pa.string()), pa.FixedSizeListArray.from_arrays(flat, self._width)]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


_WRITERS: dict[str, Any] = {".jsonl": _JsonLines, ".npy": _Numpy, ".safetensors": _Safetensors, ".parquet": _Parquet}
