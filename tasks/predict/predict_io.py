"""Inputs and outputs of `cloze predict` and `cloze embed`.

Inputs are streamed lines, TSV or JSON lines, or files in a benchmark's format; embeddings are streamed to JSON lines,
.npy, .safetensors or Parquet. The number of embeddings is not known in advance, so the headers of .npy and .safetensors
are rewritten at the end, in space reserved for them.
"""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.splits import read_test
from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.common.files import atomic_file, open_file, parse_json

Format = Literal["auto", "lines", "tsv", "jsonl", "own"]
Placed = tuple[str, Any]  # location, and the row or the UserError from reading it
Chunk = tuple[Sequence[str], np.ndarray]  # texts, and (texts, width) float32

STDIN = Path("-")
_BY_ENDING: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv"}
_BY_ENDING |= dict.fromkeys((".csv", ".json", ".parquet", ".conll"), "own")
_MAX_LINE_BYTES = 16 << 20  # a longer line is no text for an encoder; it may be a device that never ends one
_HEAD_BYTES = 256  # .safetensors header: eight bytes for the length, then JSON padded with spaces


def rows_of(path: Path, row: Benchmark, format_: Format = "auto") -> Iterator[Placed]:
    """Yield the rows of a file for a benchmark's model. A row that cannot be read is yielded as a UserError.

    Args:
        path: input file; `-` is standard input.
        format_: `lines` (one text per line), `tsv` (texts in columns, by the benchmark's column names if there is a
            header, else in order), `jsonl` (a text, a list or an object per line), `own` (the benchmark's file format),
            or `auto` (by the file's suffix, else by its first line).

    Raises:
        UserError: the file is missing, or its format does not fit the benchmark.
    """
    format_ = _BY_ENDING.get(path.suffix, "auto") if format_ == "auto" else format_
    if format_ == "own":
        yield from _own(path, row)
        return
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        return
    lines = itertools.chain([first], lines)
    match _guessed(first[1], row) if format_ == "auto" else format_:
        case "own":
            yield from _own(path, row)
        case "jsonl":
            yield from (_jsonl(where, line) for where, line in lines)
        case "tsv":
            yield from _tsv(first, lines, row)
        case "lines":
            yield from lines


def require(path: Path, output: Path | None = None) -> None:
    """Raise a UserError if an input cannot be read or an output cannot be written, before slow work starts."""
    with _opened(path):
        pass
    if output is not None:
        _check_output(output)


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; `-` is standard input.

    Raises:
        UserError: the file is missing, or a line is not UTF-8.
    """
    for _, line in placed_lines(path):
        yield line


def placed_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the location of each line with the line; see `text_lines`."""
    for where, line in _lines(path):
        if isinstance(line, UserError):
            raise UserError(f"{where}: {line}")
        yield where, line


def _lines(path: Path) -> Iterator[Placed]:
    """Yield each line without its line break, or a UserError if it is not UTF-8 or too long."""
    name = "standard input" if path == STDIN else path
    with _opened(path) as file:

        def part_of_line() -> bytes:
            try:
                return file.readline(_MAX_LINE_BYTES)
            except OSError as error:
                raise UserError(f"{name}: cannot be read ({error.strerror})") from None

        for number in itertools.count(1):
            if not (raw := part_of_line()):
                return
            content = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            where = f"{name}: line {number}"
            if len(raw) == _MAX_LINE_BYTES and not raw.endswith(b"\n"):
                yield where, UserError(f"longer than {_MAX_LINE_BYTES >> 20} MiB; split the text")
                while raw and not raw.endswith(b"\n"):
                    raw = part_of_line()
                continue
            try:
                yield where, content.decode().removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                yield where, UserError(f"not UTF-8 (at byte {error.start})")


def _opened(path: Path) -> AbstractContextManager[BinaryIO]:
    if path != STDIN:
        return open_file(path, "; give a file with input rows, or - for standard input")
    if sys.stdin is None:  # as Python has it if the descriptor is closed
        raise UserError("standard input: closed; give a file with input rows")
    return nullcontext(sys.stdin.buffer)


def _guessed(first: Any, row: Benchmark) -> Format:
    if not isinstance(first, str):
        return "lines"
    if first.startswith("-DOCSTART-"):  # CoNLL
        return "own"
    if first.startswith(("{", "[", '"')):
        with suppress(json.JSONDecodeError):
            with suppress(UserError):
                _loads(first)
            return "jsonl"
    return "tsv" if len(HEAD_SPECS[row.head].request_columns(row)) > 1 else "lines"


def _loads(line: str) -> Any:
    try:
        return parse_json(line)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise UserError(f"not JSON ({error})") from None


def _jsonl(where: str, line: Any) -> Placed:
    try:
        return where, line if isinstance(line, UserError) else _loads(line)
    except UserError as error:
        return where, error
    except json.JSONDecodeError as error:
        return where, UserError(f"not JSON ({error.msg}, column {error.colno}): {line[:60]!r}")


def _tsv(first: Placed, lines: Iterator[Placed], row: Benchmark) -> Iterator[Placed]:
    """Quotation marks are ordinary characters, as in GLUE's files."""
    names = HEAD_SPECS[row.head].request_columns(row)
    header = str(first[1]).split("\t")
    if set(names) <= set(header):
        next(lines)
    else:
        columns = list(row.columns or ())
        header = columns if len(columns) == len(header) else []
    places = {name: header.index(name) for name in (*names, row.identity) if name in header}
    width = len(header) or len(names)
    for where, line in lines:
        if isinstance(line, UserError):
            yield where, line
            continue
        fields = line.split("\t")
        if len(fields) != width:
            expected = ", ".join(header or names)
            yield where, UserError(f"expected {width} columns ({expected}), found {len(fields)}")
        elif header:
            yield where, {name: fields[place] for name, place in places.items()}
        else:
            yield where, fields[0] if len(fields) == 1 else dict(zip(names, fields))


def _own(path: Path, row: Benchmark) -> Iterator[Placed]:
    """Yield the rows of a file in the benchmark's format; labels are ignored."""
    if path == STDIN:
        raise UserError("standard input: files in the benchmark's format cannot be piped; give a file name")
    name = {"": path.name}
    whole = row.model_copy(update={"dev": name, "test": name, "forms": ()})
    for number, example in enumerate(read_test(whole, path.resolve().parent)[""].examples):
        yield f"{path}: row {number}", example


def write_vectors(path: Path | None, chunks: Iterable[Chunk], width: int) -> int:
    """Write all vectors, of dimension `width`, in order and return their number.

    The suffix of `path` selects the format (.jsonl, .npy, .safetensors with the tensor `vectors`, or .parquet with the
    columns `text` and `vector`). None writes JSON lines to standard output.

    Raises:
        UserError: the suffix is not supported.
    """
    if path is None:
        return _write_json_lines(sys.stdout.buffer, chunks, width)
    if path.suffix not in _WRITERS:
        raise UserError(f"{path}: expected a file that ends in {', '.join(_WRITERS)}")
    with replaced(path) as file:
        return _WRITERS[path.suffix](file, chunks, width)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file next to `path`, open for reading and writing, which replaces `path` if the block succeeds.

    Raises:
        UserError: the directory does not exist, `path` is not a regular file, or it cannot be written.
    """
    _check_output(path)
    with atomic_file(path) as temporary:
        try:
            file = temporary.open("w+b")
        except OSError as error:
            raise _cannot_be_written(path, error) from None
        with file:
            yield file


def _check_output(path: Path) -> None:
    try:
        if not path.parent.is_dir():
            raise UserError(f"{path.parent}: no such directory; create it, or choose another path")
        if path.is_dir():
            raise UserError(f"{path}: is a directory; choose the path of a file")
        if path.exists() and not path.is_file():  # replacing a device would break the system
            raise UserError(f"{path}: not a regular file; omit --output to write to standard output")
    except OSError as error:
        raise _cannot_be_written(path, error) from None


def _cannot_be_written(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be written ({error.strerror})")


def _write_json_lines(file: BinaryIO, chunks: Iterable[Chunk], width: int) -> int:
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
