"""MediaWiki export dumps: pages cut out of a stream of any length in constant memory, then parsed one by one.

The exporter writes <page> and </page> nowhere but around pages (text is escaped), so pages are found by their bytes,
and only the bytes between them are given to an XML parser: no document type, entity or damage elsewhere in a dump
reaches it. A dump is read in chunks: a page belongs to the chunk in which it begins.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from model.common.errors import UserError
from tasks.corpus.sources.bz2_blocks import read_blocks
from tasks.corpus.sources.file_chunks import Draft, Dropped, FileChunk
from tasks.corpus.sources.inline_markup import FILE_NAMESPACES
from tasks.corpus.sources.wikitext import paragraphs_of
from tasks.params.corpus import MediaWikiSource

SUFFIXES = (".xml", ".xml.bz2")
Page = tuple[bytes, frozenset[str]]  # its XML, the names of the namespaces of files
_READ_BYTES = 1 << 18
_START, _END = b"<page>", b"</page>"
_END_OF_DUMP = b"</mediawiki>"
_LARGEST_END_BYTES = 2 << 20  # no bz2 block is larger
_LARGEST_HEADER_BYTES = 1 << 20
_FILE_NAMESPACE_KEYS = (b"-2", b"6", b"14")  # media, file, category
_NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]+)</namespace>')


def read(source: MediaWikiSource, chunk: FileChunk, drops: Counter[str]) -> Iterator[Page]:
    """The pages that begin in a chunk of a dump, in constant memory.

    Raises:
        UserError: the file is no dump, or is cut off or damaged.
    """
    cutter = _PageCutter(source.max_page_bytes, drops)
    file_namespaces = _file_namespaces(chunk)
    with chunk.open() as file:
        for position, content in _contents(file, chunk, chunk.start):
            if position >= chunk.end and not cutter.at_border:
                cutter.begin_last()
            for page in cutter.feed(content):
                yield page, file_namespaces
            if cutter.done:
                break
    cutter.close(chunk)
    if chunk.start == 0 and not cutter.seen_page and not _holds_page(chunk):
        if _is_utf16(chunk):
            raise UserError(f"{chunk.name}: is in UTF-16, expected UTF-8; convert it (iconv -f UTF-16 -t UTF-8)")
        raise UserError(f"{chunk.name}: holds no <page> element; expected a MediaWiki export dump (.xml or .xml.bz2)")
    if chunk.is_last and chunk.size and not _ends_dump(chunk):
        drops["dump without its end"] += 1


def parse(source: MediaWikiSource, page: Page) -> Draft:
    """The prose of one page.

    Raises:
        Dropped: the page is none that the corpus takes; the message is the reason.
    """
    xml, file_namespaces = page
    try:
        element = ElementTree.fromstring(xml.decode("utf-8", errors="replace"))
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
        paragraphs=paragraphs_of(text, file_namespaces),
    )


def _contents(file: BinaryIO, chunk: FileChunk, start: int) -> Iterator[tuple[int, bytes]]:
    """(Byte of the file, content from there on) to the file's end, unpacked where it is .bz2.

    Nothing that begins before `chunk.end` reaches over it.
    """
    if chunk.location.endswith(".bz2"):
        yield from read_blocks(file, chunk.name, chunk.size, start)
        return
    file.seek(start)
    while content := file.read(min(_READ_BYTES, chunk.end - start) if start < chunk.end else _READ_BYTES):
        yield start, content
        start += len(content)


def _file_namespaces(chunk: FileChunk) -> frozenset[str]:
    """The names of the file and category namespaces, in English and in the wiki's own language."""
    header = b""
    with chunk.open() as file:
        for _, content in _contents(file, chunk, 0):
            header += content
            if _START in header or len(header) > _LARGEST_HEADER_BYTES:
                break
    header = header.partition(_START)[0][:_LARGEST_HEADER_BYTES]
    names = [match[2] for match in _NAMESPACE.finditer(header) if match[1] in _FILE_NAMESPACE_KEYS]
    return FILE_NAMESPACES | {name.decode("utf-8", errors="replace").lower() for name in names}


def _is_utf16(chunk: FileChunk) -> bool:
    with chunk.open() as file:
        start = next((content for _, content in _contents(file, chunk, 0)), b"")
    return start[:2] in (b"\xff\xfe", b"\xfe\xff") or start[:4] in (b"<\0m\0", b"\0<\0m")


def _ends_dump(chunk: FileChunk) -> bool:
    """Check whether a file ends as a dump does; one that was cut between two pages or streams does not."""
    tail = b""
    with chunk.open() as file:
        for _, content in _contents(file, chunk, max(0, chunk.size - _LARGEST_END_BYTES)):
            tail = (tail + content)[-_LARGEST_END_BYTES:]
    return tail.rstrip().endswith(_END_OF_DUMP)


def _holds_page(chunk: FileChunk) -> bool:
    """Check whether a page begins anywhere in the file."""
    before = b""
    with chunk.open() as file:
        for _, content in _contents(file, chunk, 0):
            if _START in before + content:
                return True
            before = content[-len(_START) :]
    return False


class _PageCutter:
    """Finds pages in content that arrives in chunks."""

    def __init__(self, max_page_bytes: int, drops: Counter[str]) -> None:
        self._max_page_bytes = max_page_bytes
        self._drops = drops
        self._buffer = bytearray()
        self._in_page = False
        self._skipping = False
        self._searched = 0  # where in the buffer to continue the search for the page's end
        self.seen_page = False
        self.at_border = False
        self.done = False
        """True if the last page is complete."""

    def begin_last(self) -> None:
        """Ignore the content from here on, except that of a page that has begun."""
        self.at_border = True
        if not self._in_page:
            begun = [size for size in range(1, len(_START)) if self._buffer.endswith(_START[:size])]
            del self._buffer[: len(self._buffer) - max(begun, default=0)]
            self.done = not self._buffer

    def feed(self, content: bytes) -> Iterator[bytes]:
        """The pages that are complete now, each with its <page> element's tags."""
        if self.done:
            return
        self._buffer += content
        while True:
            if not self._in_page:
                start = self._buffer.find(_START)
                if self.at_border and start != 0:
                    self.done = not _START.startswith(self._buffer)
                    return
                if start < 0:
                    del self._buffer[: max(0, len(self._buffer) - len(_END_OF_DUMP))]
                    return
                self.seen_page = self._in_page = True
                del self._buffer[:start]
                self._searched = 0
            end = self._buffer.find(_END, self._searched)
            if end < 0:
                self._searched = max(0, len(self._buffer) - len(_END) + 1)
                if self._skipping or len(self._buffer) > self._max_page_bytes:
                    self._skipping = True
                    del self._buffer[: self._searched]
                    self._searched = 0
                return
            end += len(_END)
            if self._skipping or end > self._max_page_bytes:
                self._drops["page too large"] += 1
            else:
                yield bytes(self._buffer[:end])
            del self._buffer[:end]
            self._in_page = self._skipping = False
            if self.at_border:
                self.done = True
                return

    def close(self, chunk: FileChunk) -> None:
        """Check that the content ended where a chunk of a dump can end."""
        if self._in_page:
            raise UserError(f"{chunk.name}: ends in the middle of a page, so it was cut off; download it again")
