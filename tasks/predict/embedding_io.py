"""Stream embeddings to a file or a pipe: JSON lines, .npy, .safetensors or Parquet.

The number of embeddings is not known in advance, so the headers of .npy and .safetensors are rewritten at the end, in
space reserved for them. A file is written completely or not at all.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from model.common.errors import UserError
from model.common.files import atomic_file

Chunk = tuple[Sequence[str], np.ndarray]  # texts, and (texts, width) float32

_HEAD_BYTES = 256  # .safetensors header: eight bytes for the length, then JSON padded with spaces


def write_vectors(path: Path | None, chunks: Iterable[Chunk], width: int) -> int:
    """Write all vectors in order and return their number.

    Args:
        path: output file; the suffix selects the format (.jsonl, .npy, .safetensors with the tensor `vectors`, or
            .parquet with the columns `text` and `vector`). None writes JSON lines to standard output.
        width: embedding dimension.

    Raises:
        UserError: the suffix is not supported.
    """
    if path is None:
        return _write_json_lines(sys.stdout.buffer, chunks, width)
    if path.suffix not in _WRITERS:
        raise UserError(f"{path}: expected a file that ends in {', '.join(_WRITERS)}")
    with replaced(path) as temporary, temporary.open("w+b") as file:
        return _WRITERS[path.suffix](file, chunks, width)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary file next to `path`, which replaces `path` if the block succeeds.

    Raises:
        UserError: the directory does not exist.
    """
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such directory; create it, or choose another path")
    with atomic_file(path) as temporary:
        yield temporary


def _write_json_lines(file: BinaryIO, chunks: Iterable[Chunk], width: int) -> int:
    """One {"text": ..., "vector": [...]} per line."""
    count = 0
    for texts, vectors in chunks:
        lines = []
        for text, vector in zip(texts, vectors, strict=True):
            numbers = ", ".join([f"{value:.7g}" for value in vector.tolist()])  # enough digits for float32
            lines.append(f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": [{numbers}]}}\n')
        file.write("".join(lines).encode())
        file.flush()
        count += len(vectors)
    return count


def _write_raw(header: Callable[[int, int], bytes], file: BinaryIO, chunks: Iterable[Chunk], width: int) -> int:
    """(rows, width) little-endian float32 after a header of fixed length."""
    count = 0
    reserved = file.write(header(0, width))
    for _, vectors in chunks:
        file.write(vectors.astype("<f4", copy=False).tobytes())
        count += len(vectors)
    file.seek(0)
    written = file.write(header(count, width))
    assert written == reserved, "the header has grown"
    return count


def _numpy_header(rows: int, width: int) -> bytes:
    file = io.BytesIO()
    head = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, head)  # reserves space for a larger first dimension
    return file.getvalue()


def _safetensors_header(rows: int, width: int) -> bytes:
    vectors = {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, 4 * rows * width]}
    head = json.dumps({"vectors": vectors}).encode().ljust(_HEAD_BYTES - 8)
    return len(head).to_bytes(8, "little") + head


def _write_parquet(file: BinaryIO, chunks: Iterable[Chunk], width: int) -> int:
    """Columns `text` and `vector`; one row group per chunk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    schema = pa.schema([("text", pa.string()), ("vector", pa.list_(pa.float32(), width))])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for texts, vectors in chunks:
            flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
            columns = [pa.array(texts, pa.string()), pa.FixedSizeListArray.from_arrays(flat, width)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            count += len(vectors)
    return count


_WRITERS: dict[str, Callable[[BinaryIO, Iterable[Chunk], int], int]] = {
    ".jsonl": _write_json_lines,
    ".npy": partial(_write_raw, _numpy_header),
    ".safetensors": partial(_write_raw, _safetensors_header),
    ".parquet": _write_parquet,
}
