"""Vectors to a file or a pipe as they come: JSON lines, .npy, .safetensors or Parquet.

Whoever writes does not know how many there will be: .npy and .safetensors get their heads at the end, in room left for
them. A file appears whole or not at all.
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

_HEAD_BYTES = 256  # of .safetensors: eight for its length, the rest JSON and blanks, which the format allows
_DIGITS = 7  # of a number in JSON lines: all that float32 has


class _Writer(Protocol):
    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None: ...

    def close(self) -> None: ...


def write_vectors(path: Path | None, chunks: Iterable[Chunk], width: int) -> int:
    """Write all vectors, in order; the number of them.

    Args:
        path: its ending says the format (.jsonl, .npy, .safetensors with the tensor `vectors`, .parquet with the
            columns `text` and `vector`); None writes JSON lines to standard output.
        width: of a vector.

    Raises:
        UserError: an ending that is none of these.
    """
    if path is None:
        return _write(_JsonLines(sys.stdout.buffer), chunks)
    if path.suffix not in _WRITERS:
        raise UserError(f"{path}: expected a file that ends in {', '.join(_WRITERS)}")
    with replaced(path) as partial:
        return _write(_WRITERS[path.suffix](partial, width), chunks)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place when all has gone well.

    Raises:
        UserError: the folder is not there.
    """
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such folder; make it, or write elsewhere")
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
    """{"text": ..., "vector": [...]} a line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

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


class _Numpy:
    """(rows, width) little-endian float32."""

    def __init__(self, path: Path, width: int) -> None:
        self._file = path.open("w+b")
        self._width = width
        self._rows = 0
        self._write_head()
        self._begin = self._file.tell()

    def _write_head(self) -> None:
        head = {"descr": "<f4", "fortran_order": False, "shape": (self._rows, self._width)}
        np.lib.format.write_array_header_1_0(self._file, head)  # leaves room for the first axis to grow

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self._file.write(vectors.astype("<f4", copy=False).tobytes())
        self._rows += len(vectors)

    def close(self) -> None:
        self._file.seek(0)
        self._write_head()
        assert self._file.tell() == self._begin, "numpy left no room in the head"
        self._file.close()


class _Safetensors:
    """One tensor, `vectors`."""

    def __init__(self, path: Path, width: int) -> None:
        self._file = path.open("w+b")
        self._width = width
        self._rows = 0
        self._file.write(b" " * _HEAD_BYTES)

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self._file.write(vectors.astype("<f4", copy=False).tobytes())
        self._rows += len(vectors)

    def close(self) -> None:
        shape = [self._rows, self._width]
        vectors = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * self._rows * self._width]}
        head = json.dumps({"vectors": vectors}).encode().ljust(_HEAD_BYTES - 8)
        self._file.seek(0)
        self._file.write(len(head).to_bytes(8, "little") + head)
        self._file.close()


class _Parquet:
    """Columns `text` and `vector`; a row group for each window."""

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


def _json_lines(path: Path, _: int) -> _JsonLines:
    return _JsonLines(path.open("wb"))


_WRITERS: dict[str, Any] = {".jsonl": _json_lines, ".npy": _Numpy, ".safetensors": _Safetensors, ".parquet": _Parquet}
