"""Plain text that is no book: a document per file, per block between blank lines, or per line."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from model.errors import UserError
from tasks.corpus.documents import CHUNK_BYTES, Chunk, Draft, Dropped
from tasks.corpus.prose import tidy
from tasks.corpus.settings import TextSource

SUFFIXES = (".txt", ".text", ".txt.gz", ".txt.bz2")
TOO_LARGE = "larger than max_document_bytes"

Block = tuple[int, bytes]  # number from 1, text


def read_chunks(source: TextSource, path: Path, name: str) -> Iterator[Chunk]:
    """The documents of a file, streamed; one that is too large is passed over and counted.

    Raises:
        UserError: a packed file is damaged or cut off.
    """
    items: list[Block] = []
    drops: Counter[str] = Counter()
    number = num_bytes = 0
    with path.open("rb") as raw:
        try:
            for number, text in enumerate(_blocks(_opened(raw, name), source), start=1):
                if text is None:
                    drops[TOO_LARGE] += 1
                    continue
                items.append((number, text))
                num_bytes += len(text)
                if num_bytes >= CHUNK_BYTES:
                    yield Chunk(items, name, raw.tell(), drops=drops)
                    items, drops, num_bytes = [], Counter(), 0
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(
                f"{name}: damaged or cut off after document {number:,} ({error}); download it again"
            ) from None
    yield Chunk(items, name, path.stat().st_size, drops=drops)


def parse(source: TextSource, block: Block, chunk: Chunk) -> Draft:
    """The lines of one document; without a title, since text has none."""
    number, content = block
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Dropped("not UTF-8") from None
    lines = [tidy(line) for line in text.splitlines()]
    identifier = chunk.file if source.documents == "files" else f"{chunk.file}#{number}"
    return Draft(identifier, "", [line for line in lines if line])


def _opened(raw: BinaryIO, name: str) -> BinaryIO:
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if name.endswith(".bz2"):
        return bz2.BZ2File(raw)  # type: ignore[return-value]
    return raw


def _blocks(stream: BinaryIO, source: TextSource) -> Iterator[bytes | None]:
    """The documents' bytes; None for one that is too large. Never holds more than the largest one allowed."""
    limit = source.max_document_bytes
    lines: list[bytes] = []
    size = 0
    while line := stream.readline(limit + 1):
        ends = source.documents == "lines" and line.endswith(b"\n")
        blank = not line.strip()
        if not blank or source.documents == "files":
            size += len(line)
            if size <= limit:
                lines.append(line)
            else:
                lines.clear()
        if ends or (blank and source.documents == "blocks"):
            if size:
                yield b"".join(lines) if size <= limit else None
            lines, size = [], 0
    if size:
        yield b"".join(lines) if size <= limit else None
