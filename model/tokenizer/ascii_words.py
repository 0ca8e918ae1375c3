"""WordPiece of printable ASCII, compiled: the greedy longest match of Devlin et al. 2019 (their tokenization.py).

Normalising such text is lower-casing it; letters and digits side by side are a word, every other character is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba
import numpy as np

from model.common.rng import Integer
from model.tokenizer.byte_hash import FNV_PRIME, FNV_START, same_bytes, settled


@numba.njit(cache=True, nogil=True)
def _enter(
    table: np.ndarray, hashes: np.ndarray, borders: np.ndarray, spelling: np.ndarray, continuing: np.ndarray
) -> None:
    """Enter all pieces: hashes of their bytes, another start for those that continue a word."""
    mask = len(table) - 1
    for piece in range(len(hashes)):
        value = FNV_START ^ np.uint64(continuing[piece])
        for at in range(borders[piece], borders[piece + 1]):
            value = (value ^ np.uint64(spelling[at])) * FNV_PRIME
        hashes[piece] = value
        slot = np.int64(settled(value) & np.uint64(mask))
        while table[slot] != 0:
            slot = (slot + 1) & mask
        table[slot] = piece + 1


@numba.njit(cache=True, nogil=True)
def _find(
    table: np.ndarray,
    hashes: np.ndarray,
    borders: np.ndarray,
    spelling: np.ndarray,
    continuing: np.ndarray,
    value: Integer,
    text: np.ndarray,
    start: Integer,
    length: Integer,
    continues: Integer,
) -> Integer:
    """The piece that is text[start : start + length], or -1."""
    mask = len(table) - 1
    slot = np.int64(settled(value) & np.uint64(mask))
    while table[slot] != 0:
        piece = table[slot] - 1
        begin = borders[piece]
        alike = hashes[piece] == value and continuing[piece] == continues and borders[piece + 1] - begin == length
        if alike and same_bytes(spelling, begin, text, start, length):
            return piece
        slot = (slot + 1) & mask
    return -1


@numba.njit(cache=True, nogil=True)
def is_alphanumeric(byte: Integer) -> bool:
    """A letter or digit of ASCII."""
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122


@numba.njit(cache=True, nogil=True)
def cut_runs(
    first_run: int,
    last_run: int,
    run_borders: np.ndarray,
    run_spelling: np.ndarray,
    id_starts: np.ndarray,
    id_counts: np.ndarray,
    pool: np.ndarray,
    num_ids: int,
    table: np.ndarray,
    hashes: np.ndarray,
    borders: np.ndarray,
    spelling: np.ndarray,
    continuing: np.ndarray,
    ids: np.ndarray,
    lowercase: bool,
    longest_word: int,
    longest_piece: int,
    unknown: int,
) -> int:
    """The ids of runs `first_run` to `last_run` - 1 to the end of `pool`; -1 into `id_counts` of those that are no
    printable ASCII. Gives the new end of the pool."""
    prefixes = np.empty(longest_piece + 1, dtype=np.uint64)
    for run in range(first_run, last_run):
        begin, end = run_borders[run], run_borders[run + 1]
        text = run_spelling[begin:end].copy()
        printable = True
        for at in range(len(text)):
            printable &= 32 < text[at] < 127
        if not printable:
            id_counts[run] = -1
            continue
        if lowercase:
            for at in range(len(text)):
                if 65 <= text[at] <= 90:
                    text[at] += 32
        id_starts[run] = num_ids
        at = 0
        while at < len(text):
            word = at
            at += 1
            if is_alphanumeric(text[word]):
                while at < len(text) and is_alphanumeric(text[at]):
                    at += 1
            begin_of_word, start, known = num_ids, word, at - word <= longest_word
            while known and start < at:
                most = min(at - start, longest_piece)
                continues = 1 if start > word else 0
                prefixes[0] = FNV_START ^ np.uint64(continues)
                for index in range(most):
                    prefixes[index + 1] = (prefixes[index] ^ np.uint64(text[start + index])) * FNV_PRIME
                known = False
                for length in range(most, 0, -1):
                    piece = _find(
                        table, hashes, borders, spelling, continuing, prefixes[length], text, start, length, continues
                    )
                    if piece >= 0:
                        pool[num_ids] = ids[piece]
                        num_ids += 1
                        start += length
                        known = True
                        break
            if not known:
                num_ids = begin_of_word
                pool[num_ids] = unknown
                num_ids += 1
        id_counts[run] = num_ids - id_starts[run]
    return num_ids


class AsciiWords:
    """The ASCII part of a vocabulary, in tables.

    Args:
        vocabulary: ids by piece.
        prefix: what the spelling of pieces that continue a word begins with.
        unknown: the id of a word that cannot be cut.
        longest_word: in characters; a longer one is unknown.
        lowercase: whether text is made lower-case.
    """

    def __init__(
        self, vocabulary: Mapping[str, int], prefix: str, unknown: int, longest_word: int, lowercase: bool
    ) -> None:
        pieces = [(piece, number) for piece, number in vocabulary.items() if piece.isascii()]
        # A piece that is spelt with the prefix may also begin a word: "##" is text, too.
        entries = [(piece.encode(), 0, number) for piece, number in pieces if piece]
        entries += [
            (piece.removeprefix(prefix).encode(), 1, number)
            for piece, number in pieces
            if piece.startswith(prefix) and piece != prefix
        ]
        spelling = np.frombuffer(b"".join(entry[0] for entry in entries), dtype=np.uint8)
        borders = np.cumsum([0, *(len(entry[0]) for entry in entries)], dtype=np.int64)
        continuing = np.array([entry[1] for entry in entries], dtype=np.uint8)
        hashes = np.zeros(len(entries), dtype=np.uint64)
        table = np.zeros(1 << (2 * len(entries) + 1).bit_length(), dtype=np.int32)
        _enter(table, hashes, borders, spelling, continuing)
        ids = np.array([entry[2] for entry in entries], dtype=np.int64)
        longest_piece = max((len(entry[0]) for entry in entries), default=1)
        self._tables = table, hashes, borders, spelling, continuing, ids
        self._rules = lowercase, longest_word, longest_piece, unknown

    def cut(self, first_run: int, last_run: int, *arrays: Any) -> int:
        """See `cut_runs`, whose first eight arguments these are."""
        arguments = (first_run, last_run, *arrays, *self._tables, *self._rules)
        return int(cut_runs(*arguments))  # type: ignore[call-arg]
