"""Read plain text with one document per file, per block between blank lines, or per line or group of lines."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from model.common.errors import UserError
from tasks.corpus.sources.file_chunks import Draft, Dropped, FileChunk, unpacked
from tasks.corpus.sources.prose import tidy_lines
from tasks.params.corpus import TextSource

SUFFIXES = (".txt", ".text", ".txt.gz", ".txt.bz2")
TOO_LARGE = "larger than max_document_bytes"

Block = tuple[str, bytes]  # (identifier, text)


def read(source: TextSource, chunk: FileChunk, drops: Counter[str]) -> Iterator[Block]:
    """Stream the documents of a file; documents that are too large are skipped and counted.

    Raises:
        UserError: a compressed file is damaged or truncated.
    """
    number = 0
    with chunk.open() as raw:
        try:
            for number, text in enumerate(_blocks(unpacked(raw, chunk.name), source), start=1):
                if text is None:
                    drops[TOO_LARGE] += 1
                else:
                    yield chunk.name if source.documents == "files" else f"{chunk.name}#{number}", text
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(
                f"{chunk.name}: damaged or truncated after document {number:,} ({error}); download it again"
            ) from None


def parse(_source: TextSource, block: Block) -> Draft:
    """Split a document into lines; plain text has no title."""
    identifier, content = block
    try:
        return Draft(identifier, "", tidy_lines(content.decode("utf-8-sig").splitlines()))
    except UnicodeDecodeError:
        raise Dropped("not UTF-8") from None


def _blocks(stream: BinaryIO, source: TextSource) -> Iterator[bytes | None]:
    """Yield the bytes of each document, or None if it is too large. Holds at most max_document_bytes in memory."""
    limit = source.max_document_bytes
    lines: list[bytes] = []
    size = num_lines = 0
    while line := stream.readline(limit + 1):
        blank = not line.strip()
        num_lines += line.endswith(b"\n") and not blank
        ends = source.documents == "lines" and num_lines == source.lines_per_document
        if not blank or source.documents == "files":
            size += len(line)
            if size <= limit:
                lines.append(line)
            else:
                lines.clear()
        if ends or (blank and source.documents == "blocks"):
            if size:
                yield b"".join(lines) if size <= limit else None
            lines, size, num_lines = [], 0, 0
    if size:
        yield b"".join(lines) if size <= limit else None
