"""Read the output of wikiextractor: files named wiki_NN with <doc> elements or JSON lines."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterator

from model.common.errors import UserError
from tasks.corpus.sources.file_chunks import Draft, FileChunk, numbered_lines
from tasks.corpus.sources.prose import tidy
from tasks.params.corpus import WikiextractorSource

Item = tuple[str, str, str]  # (identifier, title, text)
_START = re.compile(r'<doc id="([^"]*)"[^>]*? title="([^"]*)"')
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")


def read(source: WikiextractorSource, chunk: FileChunk, drops: Counter[str]) -> Iterator[Item]:
    """Stream the documents of one file.

    Raises:
        UserError: the file has neither format, or is truncated.
    """
    start: re.Match[str] | None = None
    lines: list[str] = []
    num_characters = 0
    with chunk.open() as file:
        for number, raw in numbered_lines(file, source.max_document_bytes, drops):
            line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
            if start is not None:
                if line.strip() == "</doc>":
                    if num_characters > source.max_document_bytes:
                        drops["document too large"] += 1
                    else:
                        yield html.unescape(start[1]), html.unescape(start[2]), "\n".join(lines)
                    start, lines, num_characters = None, [], 0
                else:
                    num_characters += len(line) + 1
                    if num_characters <= source.max_document_bytes:
                        lines.append(line)
            elif line.startswith("<doc "):
                start = _START.match(line)
                if start is None:
                    raise UserError(f"{chunk.name}: line {number}: <doc> without id and title")
            elif line.startswith("{"):
                yield _json_document(line, chunk.name, number)
            elif line.strip():
                raise UserError(
                    f"{chunk.name}: line {number}: expected <doc ...> or a JSON object, as wikiextractor writes"
                )
    if start is not None:
        raise UserError(f"{chunk.name}: ends inside a <doc>, so it is truncated; run wikiextractor again")


def parse(_source: WikiextractorSource, item: Item) -> Draft:
    """Split a document into paragraphs, without the title line."""
    identifier, title, text = item
    lines = [tidy(html.unescape(_TAG.sub("", line))) for line in text.split("\n")]
    if lines and lines[0] == tidy(title):
        lines = lines[1:]
    return Draft(identifier, title, [line for line in lines if line])


def _json_document(line: str, name: str, number: int) -> tuple[str, str, str]:
    try:
        row = json.loads(line)
        return str(row["id"]), str(row["title"]), str(row["text"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{name}: line {number}: expected a JSON object with id, title and text") from None
