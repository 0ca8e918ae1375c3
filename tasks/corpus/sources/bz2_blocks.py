"""Blocks of .bz2 files: any part of a file can be read alone, however it was packed.

A bz2 stream is a sequence of independent blocks of at most 900 kB of content, which can begin at any bit. Each starts
with a 48-bit magic number, which occurs in content by chance once in 280 TB. As bzip2recover does, this module searches
for the magic numbers and decompresses each block as a separate stream, so several processes can read one stream.
"""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from typing import BinaryIO

from model.common.errors import UserError

_BLOCK = 0x314159265359
_END = 0x177245385090
_READ_BYTES = 1 << 20
_LARGEST_BLOCK_BYTES = 4 << 20  # packed; 900 kB of content never take more than a third of it
_MAGIC_BITS, _CRC_BITS = 48, 32


def read_blocks(file: BinaryIO, name: str, size: int, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """(Byte in which a block begins, its content) of the blocks that begin at or after byte `start`, in order.

    The file is read as the blocks are asked for; a block's content takes at most 46 MB.

    Args:
        file: the whole file, seekable.
        name: for messages.
        size: the file's bytes.
        start: first byte; blocks that begin before it are skipped.

    Raises:
        UserError: the file is no bz2 file, is damaged or cut off.
    """
    file.seek(start)
    if start == 0 and size and file.read(4)[:3] != b"BZh":
        raise UserError(f"{name}: damaged or no bz2 file (at its first byte); download it again")
    file.seek(start)
    data = b""
    base = start  # the byte of the file that data[0] is
    searched = 0
    block: int | None = None  # the bit of data where a block waits for its end
    end: int | None = None  # the bit of the file after the last end of a stream
    failed = False
    while more := file.read(_READ_BYTES):
        data += more
        for bit, is_block in _marks(data, max(0, searched - 7)):
            if bit < 8 * searched - _MAGIC_BITS + 1:
                continue  # was found in the last round
            if block is not None:
                content = _content(data, block, bit)
                if content is None:  # 48 bits of its content look like a mark, or it is damaged
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
    whole = end is None and start > 0 if block is None else False
    if end is not None:
        whole = (end + 7) // 8 == size
    if size and not whole:
        raise UserError(
            f"{name}: ends in the middle of a bz2 stream (at byte {size:,}), so it was cut off; "
            "download it again and compare its checksum"
        )


def _marks(data: bytes, start: int) -> list[tuple[int, bool]]:
    """(Bit, whether a block begins there and no stream ends) of every mark from the byte `start` on, in order."""
    found = []
    for magic, is_block in ((_BLOCK, True), (_END, False)):
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
    """The content of the block in these bits of `data`; None if there is no whole block."""
    num_bits = end - begin
    if num_bits < _MAGIC_BITS + _CRC_BITS:
        return None
    last = (end + 7) // 8
    bits = int.from_bytes(data[begin // 8 : last], "big") >> (8 * last - end)
    bits &= (1 << num_bits) - 1
    crc = (bits >> (num_bits - _MAGIC_BITS - _CRC_BITS)) & ((1 << _CRC_BITS) - 1)
    stream = (((bits << _MAGIC_BITS) | _END) << _CRC_BITS) | crc
    num_bits += _MAGIC_BITS + _CRC_BITS
    padding = -num_bits % 8
    decompressor = bz2.BZ2Decompressor()
    try:
        content = decompressor.decompress(b"BZh9" + (stream << padding).to_bytes((num_bits + padding) // 8, "big"))
    except OSError:
        return None
    return content if decompressor.eof else None
