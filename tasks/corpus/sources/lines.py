"""Lines of files of any size: none is held that is longer than a document may be, and a part of a file has its own."""

from __future__ import annotations

import bz2
import gzip
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

_READ_BYTES = 1 << 20


def numbered_lines(
    file: BinaryIO, max_bytes: int, drops: Counter[str], start: int = 0, end: int = sys.maxsize
) -> Iterator[tuple[int, bytes]]:
    """(Number from 1, line) of the lines that begin in the bytes from `start` to before `end`.

    A line longer than `max_bytes` is passed over in constant memory and counted as "line too large". Numbers count from
    `start`.
    """
    position = start
    if start:
        file.seek(start - 1)
        position += _skip_line(file) - 1  # a line that begins at `start` follows a line break
    number = 0
    while position < end:
        number += 1
        line = file.readline(max_bytes + 1)
        if not line:
            return
        position += len(line)
        if len(line) > max_bytes:
            if not line.endswith(b"\n"):
                position += _skip_line(file)
            drops["line too large"] += 1
        else:
            yield number, line


def unpacked(file: BinaryIO, name: str) -> Any:
    """The bytes of a file that is packed if its name ends with .gz or .bz2, as a stream; else the file."""
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    return bz2.BZ2File(file) if name.endswith(".bz2") else file


def _skip_line(file: BinaryIO) -> int:
    """Read to the end of the line; how many bytes that were."""
    skipped = 0
    while part := file.readline(_READ_BYTES):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped
