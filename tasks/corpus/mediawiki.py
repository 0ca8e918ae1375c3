"""MediaWiki export dumps: pages cut out of a stream of any length in constant memory, then parsed one by one.

The exporter writes <page> and </page> nowhere but around pages (text is escaped), so pages are found by their bytes,
and only what stands between is given to an XML parser: no document type, entity or damage elsewhere in a dump reaches
it.
"""

from __future__ import annotations

import bz2
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from model.errors import UserError
from tasks.corpus.clean import paragraphs_of
from tasks.corpus.documents import CHUNK_BYTES, Chunk, Draft, Dropped
from tasks.corpus.inline_markup import FILE_NAMESPACES
from tasks.corpus.settings import MediaWikiSource

SUFFIXES = (".xml", ".xml.bz2")
_READ_BYTES = 1 << 18
_START, _END = b"<page>", b"</page>"
_LARGEST_HEADER_BYTES = 1 << 20
_FILE_NAMESPACE_KEYS = (b"-2", b"6", b"14")  # media, file, category
_NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]+)</namespace>')


def read_chunks(source: MediaWikiSource, path: Path, name: str) -> Iterator[Chunk]:
    """The pages of a dump in chunks of about CHUNK_BYTES, as bytes of XML.

    Raises:
        UserError: the file is no dump, or is cut off or damaged.
    """
    cutter = _PageCutter(source.max_page_bytes)
    pages: list[bytes] = []
    num_bytes = 0
    done_bytes = 0
    for content, done_bytes in _content(path, name):
        for page in cutter.feed(content):
            pages.append(page)
            num_bytes += len(page)
            if num_bytes >= CHUNK_BYTES:
                yield Chunk(pages, name, done_bytes, cutter.file_namespaces, cutter.take_drops())
                pages, num_bytes = [], 0
    cutter.close(name)
    yield Chunk(pages, name, done_bytes, cutter.file_namespaces, cutter.take_drops())


def parse(source: MediaWikiSource, page: bytes, chunk: Chunk) -> Draft:
    """The prose of one page.

    Raises:
        Dropped: the page is none that the corpus takes; the message is the reason.
    """
    try:
        element = ElementTree.fromstring(page.decode("utf-8", errors="replace"))
    except ElementTree.ParseError:
        raise Dropped("damaged page") from None
    if (element.findtext("ns") or "0") not in map(str, source.namespaces):
        raise Dropped("other namespace")
    if element.find("redirect") is not None:
        raise Dropped("redirect")
    revisions = element.findall("revision")  # dumps with history hold them from the oldest to the newest
    newest = revisions[-1] if revisions else element
    if (newest.findtext("model") or "wikitext") != "wikitext":
        raise Dropped("not wikitext")
    text = newest.findtext("text") or ""
    return Draft(
        id=element.findtext("id") or "",
        title=element.findtext("title") or "",
        paragraphs=paragraphs_of(text, chunk.context or FILE_NAMESPACES),
    )


def _content(path: Path, name: str) -> Iterator[tuple[bytes, int]]:
    """(Content of the file, how many of its bytes had been read for it), decompressed where it is .bz2."""
    with path.open("rb") as file:
        if not path.name.endswith(".bz2"):
            while content := file.read(_READ_BYTES):
                yield content, file.tell()
            return
        yield from _decompressed(file, name)


def _decompressed(file: BinaryIO, name: str) -> Iterator[tuple[bytes, int]]:
    """One bz2 stream after another, in pieces of bounded size however well they were compressed."""
    decompressor = bz2.BZ2Decompressor()
    compressed = file.read(_READ_BYTES)
    started = False
    while compressed or started:
        try:
            content = decompressor.decompress(compressed, max_length=4 * _READ_BYTES)
        except OSError:
            raise UserError(
                f"{name}: damaged or no bz2 file (near byte {file.tell():,}); "
                "download it again and compare its checksum"
            ) from None
        started = True
        if content:
            yield content, file.tell()
        if decompressor.eof:
            compressed = decompressor.unused_data or file.read(_READ_BYTES)
            decompressor = bz2.BZ2Decompressor()
            started = False
        elif decompressor.needs_input:
            compressed = file.read(_READ_BYTES)
            if not compressed:
                raise UserError(
                    f"{name}: ends in the middle of a bz2 stream (at byte {file.tell():,}), so it was cut off; "
                    "download it again and compare its checksum"
                )
        else:
            compressed = b""


@dataclass
class _PageCutter:
    """Finds pages in content that arrives in pieces."""

    max_page_bytes: int
    file_namespaces: frozenset[str] = FILE_NAMESPACES

    def __post_init__(self) -> None:
        self._buffer = bytearray()
        self._in_page = False
        self._skipping = False
        self._searched = 0  # where in the buffer the search for the page's end goes on
        self._seen_page = False
        self._drops: Counter[str] = Counter()

    def feed(self, content: bytes) -> Iterator[bytes]:
        """The pages that are complete now, each with its <page> element's tags."""
        self._buffer += content
        while True:
            if not self._in_page:
                start = self._buffer.find(_START)
                if start < 0:
                    self._forget_outside()
                    return
                if not self._seen_page:
                    self._read_namespaces(bytes(self._buffer[:start]))
                self._seen_page = self._in_page = True
                del self._buffer[:start]
                self._searched = 0
            end = self._buffer.find(_END, self._searched)
            if end < 0:
                self._searched = max(0, len(self._buffer) - len(_END) + 1)
                if self._skipping or len(self._buffer) > self.max_page_bytes:
                    self._skipping = True
                    del self._buffer[: self._searched]
                    self._searched = 0
                return
            end += len(_END)
            if self._skipping or end > self.max_page_bytes:
                self._drops["page too large"] += 1
            else:
                yield bytes(self._buffer[:end])
            del self._buffer[:end]
            self._in_page = self._skipping = False

    def take_drops(self) -> Counter[str]:
        """What was refused since the last call."""
        drops, self._drops = self._drops, Counter()
        return drops

    def close(self, name: str) -> None:
        """Check that the content ended where a dump can end."""
        if self._in_page:
            raise UserError(f"{name}: ends in the middle of a page, so it was cut off; download it again")
        if not self._seen_page:
            raise UserError(f"{name}: holds no <page> element; expected a MediaWiki export dump (.xml or .xml.bz2)")

    def _forget_outside(self) -> None:
        keep = len(_START) - 1 if self._seen_page else _LARGEST_HEADER_BYTES
        del self._buffer[: max(0, len(self._buffer) - keep)]

    def _read_namespaces(self, header: bytes) -> None:
        """The names of the file and category namespaces in the wiki's own language."""
        names = [match[2] for match in _NAMESPACE.finditer(header) if match[1] in _FILE_NAMESPACE_KEYS]
        own = {name.decode("utf-8", errors="replace").lower() for name in names}
        self.file_namespaces = FILE_NAMESPACES | own
