"""Read MediaWiki export dumps: find the pages of a stream in constant memory, and parse them one by one.

The exporter writes <page> and </page> only around pages (text is escaped), so this module searches for these tags and
passes only the bytes between them to the XML parser. Document types, entities and damage elsewhere never reach the
parser. A dump is read in chunks; a page belongs to the chunk in which it begins.

A bz2 stream is a sequence of independent blocks of at most 900 kB of content, which can begin at any bit. Each starts
with a 48-bit magic number, which occurs in content by chance once in 280 TB. As bzip2recover does, this module searches
for the magic numbers and decompresses each block as a separate stream, so several processes can read one stream.
"""

from __future__ import annotations

import bz2
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from model.common.errors import UserError
from tasks.corpus.sources.file_chunks import Draft, Dropped, FileChunk
from tasks.corpus.sources.wikitext import FILE_NAMESPACES, paragraphs_of
from tasks.params.corpus import MediaWikiSource

SUFFIXES = (".xml", ".xml.bz2")
Page = tuple[bytes, frozenset[str]]  # (XML, names of the file namespaces)
_READ_BYTES = 1 << 18
_START, _END = b"<page>", b"</page>"
_END_OF_DUMP = b"</mediawiki>"
_LARGEST_END_BYTES = 2 << 20  # no bz2 block is larger
_LARGEST_HEADER_BYTES = 1 << 20
_FILE_NAMESPACE_KEYS = (b"-2", b"6", b"14")  # media, file, category
_NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]+)</namespace>')

_BLOCK_MAGIC = 0x314159265359
_END_MAGIC = 0x177245385090  # of a bz2 stream
_PACKED_READ_BYTES = 1 << 20
_LARGEST_BLOCK_BYTES = 4 << 20  # compressed; a block with 900 kB of content needs less than a third of it
_MAGIC_BITS, _CRC_BITS = 48, 32


def read(source: MediaWikiSource, chunk: FileChunk, drops: Counter[str]) -> Iterator[Page]:
    """Yield the pages that begin in a chunk of a dump, in constant memory.

    Raises:
        UserError: the file is not a dump, or is truncated or damaged.
    """
    file_namespaces = _file_namespaces(chunk)
    is_empty = True
    for page in _pages(chunk, source.max_page_bytes, drops):
        is_empty = False
        yield page, file_namespaces
    if chunk.start == 0 and is_empty and not _holds_page(chunk):
        start = next((content for _, content in _contents(chunk, 0)), b"")
        if start[:2] in (b"\xff\xfe", b"\xfe\xff") or start[:4] in (b"<\0m\0", b"\0<\0m"):
            raise UserError(f"{chunk.name}: is in UTF-16, expected UTF-8; convert it (iconv -f UTF-16 -t UTF-8)")
        raise UserError(f"{chunk.name}: no <page> element found; expected a MediaWiki export dump (.xml or .xml.bz2)")
    if chunk.is_last and chunk.size and not _ends_dump(chunk):
        drops["dump without its end"] += 1


def parse(source: MediaWikiSource, page: Page) -> Draft:
    """Extract the prose of one page.

    Raises:
        Dropped: the page does not belong in the corpus; the message is the reason.
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
    revisions = element.findall("revision")  # dumps with history list revisions from oldest to newest
    newest = revisions[-1] if revisions else element
    if (newest.findtext("model") or "wikitext") != "wikitext":
        raise Dropped("not wikitext")
    paragraphs = paragraphs_of(newest.findtext("text") or "", file_namespaces)
    return Draft(element.findtext("id") or "", element.findtext("title") or "", paragraphs)


def _contents(chunk: FileChunk, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, content) from `start` to the end of the file, decompressed if the file is .bz2.

    No piece crosses `chunk.end`.
    """
    with chunk.open() as file:
        if chunk.location.endswith(".bz2"):
            yield from read_blocks(file, chunk.name, chunk.size, start)
            return
        file.seek(start)
        while content := file.read(min(_READ_BYTES, chunk.end - start) if start < chunk.end else _READ_BYTES):
            yield start, content
            start += len(content)


def _file_namespaces(chunk: FileChunk) -> frozenset[str]:
    header = b""
    for _, content in _contents(chunk, 0):
        header += content
        if _START in header or len(header) > _LARGEST_HEADER_BYTES:
            break
    header = header.partition(_START)[0][:_LARGEST_HEADER_BYTES]
    names = [match[2] for match in _NAMESPACE.finditer(header) if match[1] in _FILE_NAMESPACE_KEYS]
    return FILE_NAMESPACES | {name.decode("utf-8", errors="replace").lower() for name in names}


def _ends_dump(chunk: FileChunk) -> bool:
    """Check whether a file ends with </mediawiki>, so it was not truncated between two pages or streams."""
    tail = b""
    for _, content in _contents(chunk, max(0, chunk.size - _LARGEST_END_BYTES)):
        tail = (tail + content)[-_LARGEST_END_BYTES:]
    return tail.rstrip().endswith(_END_OF_DUMP)


def _holds_page(chunk: FileChunk) -> bool:
    before = b""
    for _, content in _contents(chunk, 0):
        if _START in before + content:
            return True
        before = content[-len(_START) :]
    return False


def _pages(chunk: FileChunk, max_page_bytes: int, drops: Counter[str]) -> Iterator[bytes]:
    """Yield the pages that begin in a chunk, each including its <page> tags.

    Raises:
        UserError: the file ends inside a page.
    """
    buffer = bytearray()
    in_page = skipping = past_end = False
    searched = 0  # buffer position at which the search for the end of the page continues
    for position, content in _contents(chunk, chunk.start):
        if position >= chunk.end and not past_end:
            past_end = True
            if not in_page:  # only a <page> tag that crosses the end of the chunk can still begin a page
                begun = max((size for size in range(1, len(_START)) if buffer.endswith(_START[:size])), default=0)
                del buffer[: len(buffer) - begun]
                if not buffer:
                    return
        buffer += content
        while True:
            if not in_page:
                start = buffer.find(_START)
                if past_end and start != 0:
                    if _START.startswith(buffer):
                        break
                    return
                if start < 0:
                    del buffer[: max(0, len(buffer) - len(_END_OF_DUMP))]
                    break
                in_page = True
                del buffer[:start]
                searched = 0
            end = buffer.find(_END, searched)
            if end < 0:
                searched = max(0, len(buffer) - len(_END) + 1)
                if skipping or len(buffer) > max_page_bytes:
                    skipping = True
                    del buffer[:searched]
                    searched = 0
                break
            end += len(_END)
            if skipping or end > max_page_bytes:
                drops["page too large"] += 1
            else:
                yield bytes(buffer[:end])
            del buffer[:end]
            in_page = skipping = False
            if past_end:
                return
    if in_page:
        raise UserError(f"{chunk.name}: ends in the middle of a page, so it is truncated; download it again")


def read_blocks(file: BinaryIO, name: str, size: int, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, content) of the bz2 blocks that begin at or after byte `start`, in order.

    The file of `size` bytes is read lazily; the content of a block needs at most 46 MB.

    Raises:
        UserError: the file is not a bz2 file, or is damaged or truncated.
    """
    file.seek(start)
    if start == 0 and size and file.read(4)[:3] != b"BZh":
        raise UserError(f"{name}: damaged or not a bz2 file (at its first byte); download it again")
    file.seek(start)
    data = b""
    base = start  # file offset of data[0]
    searched = 0
    block: int | None = None  # bit offset in data of the block whose end has not been found
    end: int | None = None  # bit offset in the file after the last end of a stream
    failed = False
    while more := file.read(_PACKED_READ_BYTES):
        data += more
        for bit, is_block in _marks(data, max(0, searched - 7)):
            if bit < 8 * searched - _MAGIC_BITS + 1:
                continue  # already found in the previous round
            if block is not None:
                content = _content(data, block, bit)
                if content is None:  # the mark is part of the content, or the block is damaged
                    failed = True
                    continue
                yield base + block // 8, content
            failed = False
            block = bit if is_block else None
            end = None if is_block else 8 * base + bit + _MAGIC_BITS + _CRC_BITS
        searched = len(data)
        waiting = len(data) - 7 if block is None else block // 8
        if failed and searched - waiting > _LARGEST_BLOCK_BYTES:
            break
        drop = max(0, waiting)
        data, base, searched = data[drop:], base + drop, searched - drop
        block = None if block is None else block - 8 * drop
    if failed:
        raise UserError(f"{name}: damaged (near byte {base:,}); download it again and compare its checksum")
    if end is None:
        is_whole = block is None and start > 0
    else:
        is_whole = (end + 7) // 8 == size
    if size and not is_whole:
        raise UserError(
            f"{name}: ends in the middle of a bz2 stream (at byte {size:,}), so it is truncated; "
            "download it again and compare its checksum"
        )


def _marks(data: bytes, start: int) -> list[tuple[int, bool]]:
    """Return (bit offset, True for a block and False for the end of a stream) of the marks after byte `start`."""
    found = []
    for magic, is_block in ((_BLOCK_MAGIC, True), (_END_MAGIC, False)):
        for shift in range(8):
            spread = (magic << (8 - shift)).to_bytes(7, "big")
            first_mask, last_mask = 0xFF >> shift, (0xFF00 >> shift) & 0xFF
            at = data.find(spread[1:6], start + 1)
            while at >= 0:
                before = data[at - 1] & first_mask == spread[0]
                after = not last_mask or (at + 5 < len(data) and data[at + 5] & last_mask == spread[6])
                if before and after:
                    found.append((8 * (at - 1) + shift, is_block))
                at = data.find(spread[1:6], at + 1)
    return sorted(found)


def _content(data: bytes, begin: int, end: int) -> bytes | None:
    """Decompress the block in bits `begin` to `end` of `data`; return None if they are not a complete block."""
    num_bits = end - begin
    if num_bits < _MAGIC_BITS + _CRC_BITS:
        return None
    last = (end + 7) // 8
    bits = int.from_bytes(data[begin // 8 : last], "big") >> (8 * last - end)
    bits &= (1 << num_bits) - 1
    crc = (bits >> (num_bits - _MAGIC_BITS - _CRC_BITS)) & ((1 << _CRC_BITS) - 1)
    stream = (((bits << _MAGIC_BITS) | _END_MAGIC) << _CRC_BITS) | crc
    num_bits += _MAGIC_BITS + _CRC_BITS
    padding = -num_bits % 8
    decompressor = bz2.BZ2Decompressor()
    try:
        content = decompressor.decompress(b"BZh9" + (stream << padding).to_bytes((num_bits + padding) // 8, "big"))
    except OSError:
        return None
    return content if decompressor.eof else None
