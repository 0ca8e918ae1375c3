"""What wikiextractor wrote: files wiki_NN of <doc> elements, or of JSON lines."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

from model.errors import UserError
from tasks.corpus.documents import CHUNK_BYTES, Chunk, Draft
from tasks.corpus.prose import tidy
from tasks.corpus.settings import WikiextractorSource

_START = re.compile(r'<doc id="([^"]*)"[^>]*? title="([^"]*)"')
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")


def read_chunks(source: WikiextractorSource, path: Path, name: str) -> Iterator[Chunk]:
    """The documents of one file as (identifier, title, text), streamed.

    Raises:
        UserError: the file is in neither of the two forms, or is cut off.
    """
    items: list[tuple[str, str, str]] = []
    num_bytes = done_bytes = 0
    for identifier, title, text, done_bytes in _documents(path, name):
        items.append((identifier, title, text))
        num_bytes += len(text)
        if num_bytes >= CHUNK_BYTES:
            yield Chunk(items, name, done_bytes)
            items, num_bytes = [], 0
    yield Chunk(items, name, path.stat().st_size)


def parse(_source: WikiextractorSource, item: tuple[str, str, str], _chunk: Chunk) -> Draft:
    """The paragraphs of one document, without its title line."""
    identifier, title, text = item
    lines = [tidy(html.unescape(_TAG.sub("", line))) for line in text.split("\n")]
    if lines and lines[0] == tidy(title):
        lines = lines[1:]
    return Draft(identifier, title, [line for line in lines if line])


def _documents(path: Path, name: str) -> Iterator[tuple[str, str, str, int]]:
    done_bytes = 0
    start: re.Match[str] | None = None
    lines: list[str] = []
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            done_bytes += len(raw)
            line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
            if start is not None:
                if line.strip() == "</doc>":
                    yield html.unescape(start[1]), html.unescape(start[2]), "\n".join(lines), done_bytes
                    start, lines = None, []
                else:
                    lines.append(line)
            elif line.startswith("<doc "):
                start = _START.match(line)
                if start is None:
                    raise UserError(f"{name}: line {number}: a <doc> without id and title")
            elif line.startswith("{"):
                yield *_json_document(line, name, number), done_bytes
            elif line.strip():
                raise UserError(f"{name}: line {number}: expected <doc ...> or a JSON object, as wikiextractor writes")
    if start is not None:
        raise UserError(f"{name}: ends inside a <doc>, so it was cut off; run wikiextractor again")


def _json_document(line: str, name: str, number: int) -> tuple[str, str, str]:
    try:
        row = json.loads(line)
        return str(row["id"]), str(row["title"]), str(row["text"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{name}: line {number}: expected a JSON object with id, title and text") from None
