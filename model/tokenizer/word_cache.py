"""The word cache: the token ids of each run of characters between blanks, in a hash table.

Compiled code passes over UTF-8 text twice. The first pass looks up each run and collects the new ones, which are then
tokenized; the second pass writes the ids of all runs. Runs are compared byte by byte, so hash collisions only cost
time.

Runs of printable ASCII are tokenized in compiled code, too: the greedy longest match of WordPiece (tokenization.py of
Devlin et al. 2019), after lower-casing; adjacent letters and digits form a word, and every other character is a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numba
import numpy as np

from model.common.rng import Integer

_BLANK = 0x20
_CHUNK_BYTES = (
    1 << 18
)  # bytes of text that are processed at a time; tables have space for all runs that these could contain
FNV_PRIME, FNV_START = np.uint64(0x100000001B3), np.uint64(0xCBF29CE484222325)
_SHIFT = np.uint64(29)


@numba.njit(cache=True, nogil=True)
def settled(value: Integer) -> Integer:
    """A hash whose low bits depend on the high bits, for use as a table index."""
    return value ^ (value >> _SHIFT)


@numba.njit(cache=True, nogil=True)
def same_bytes(one: np.ndarray, start: Integer, other: np.ndarray, begin: Integer, length: Integer) -> bool:
    """Compare two byte ranges."""
    for index in range(length):  # noqa: SIM110 (compiled, a generator would not be)
        if one[start + index] != other[begin + index]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _enter(
    table: np.ndarray, hashes: np.ndarray, borders: np.ndarray, spelling: np.ndarray, continuing: np.ndarray
) -> None:
    """Enter all pieces by the hashes of their bytes; pieces that continue a word have another start value."""
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
    """Append the ids of runs `first_run` to `last_run` - 1 to `pool`, and return its new end.

    The `id_counts` of runs that are not printable ASCII become -1.
    """
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
        prefix: prefix of pieces that continue a word.
        unknown: the id of a word that has no pieces in the vocabulary.
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


@numba.njit(cache=True, nogil=True)
def look_up(
    text: np.ndarray,
    offsets: np.ndarray,
    table: np.ndarray,
    hashes: np.ndarray,
    borders: np.ndarray,
    spelling: np.ndarray,
    num_runs: int,
    found: np.ndarray,
    ends: np.ndarray,
) -> int:
    """Look up the numbers of all runs of some lines, and enter new runs.

    Args:
        text: (num_bytes,) uint8.
        offsets: (num_lines + 1,) start of each line, and the end of the last one.
        table: (slots,) int32, a power of two in length: the number of a run plus 1, or 0.
        hashes: (capacity,) uint64, hash of each run.
        borders: (capacity + 1,) int64: run r is spelling[borders[r] : borders[r + 1]].
        spelling: (capacity in bytes,) uint8.
        num_runs: runs entered so far.
        found: output, the runs of all lines.
        ends: (num_lines,) output, the end of each line's runs in `found`.

    Returns:
        Number of runs after new ones are entered.
    """
    mask, count = len(table) - 1, 0
    for line in range(len(ends)):
        at, end = offsets[line], offsets[line + 1]
        while at < end:
            if text[at] == _BLANK:
                at += 1
                continue
            first, value = at, FNV_START
            while at < end and text[at] != _BLANK:
                value = (value ^ np.uint64(text[at])) * FNV_PRIME
                at += 1
            value = settled(value)
            length = at - first
            slot = np.int64(value & np.uint64(mask))
            while True:
                run = table[slot] - 1
                if run < 0:
                    run = num_runs
                    table[slot], hashes[run] = run + 1, value
                    begin = borders[run]
                    for index in range(length):
                        spelling[begin + index] = text[first + index]
                    borders[run + 1] = begin + length
                    num_runs += 1
                    break
                begin = borders[run]
                same_size = hashes[run] == value and borders[run + 1] - begin == length
                if same_size and same_bytes(spelling, begin, text, first, length):
                    break
                slot = (slot + 1) & mask
            found[count] = run
            count += 1
        ends[line] = count
    return num_runs


@numba.njit(cache=True, nogil=True)
def enter_all(table: np.ndarray, hashes: np.ndarray, num_runs: int) -> None:
    """Enter the runs into an empty table; see `look_up`."""
    mask = len(table) - 1
    for run in range(num_runs):
        slot = np.int64(hashes[run] & np.uint64(mask))
        while table[slot] != 0:
            slot = (slot + 1) & mask
        table[slot] = run + 1


@numba.njit(cache=True, nogil=True)
def count_ids(found: np.ndarray, ends: np.ndarray, id_counts: np.ndarray, lengths: np.ndarray) -> int:
    """Write the number of ids of each line to `lengths`, and return their sum."""
    first, total = 0, 0
    for line in range(len(ends)):
        of_line = 0
        for index in range(first, ends[line]):
            of_line += id_counts[found[index]]
        lengths[line] = of_line
        total += of_line
        first = ends[line]
    return total


@numba.njit(cache=True, nogil=True)
def write_ids(
    found: np.ndarray, count: int, id_starts: np.ndarray, id_counts: np.ndarray, pool: np.ndarray, ids: np.ndarray
) -> None:
    """Write the concatenated ids of `count` runs to `ids`."""
    at = 0
    for index in range(count):
        start = id_starts[found[index]]
        for place in range(start, start + id_counts[found[index]]):
            ids[at] = pool[place]
            at += 1


def compiled_is_loaded() -> bool:
    """Check whether this process has loaded the compiled code, which takes about a second."""
    return bool(look_up.signatures)


class RunTable:
    """Numbers runs of characters between blanks in order of their first occurrence."""

    def __init__(self) -> None:
        self._num_runs = 0
        self._table: np.ndarray = np.zeros(1, dtype=np.int32)
        self._hashes: np.ndarray = np.empty(0, dtype=np.uint64)
        self._spelling: np.ndarray = np.empty(0, dtype=np.uint8)
        self._borders: np.ndarray = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return self._num_runs

    @property
    def spellings(self) -> tuple[np.ndarray, np.ndarray]:
        """(num_runs + 1,) int64 offsets of the runs, and their concatenated bytes."""
        return self._borders, self._spelling

    def texts(self, runs: Iterable[int]) -> list[str]:
        """The runs of these numbers."""
        borders, spelling = self._borders, self._spelling
        return [spelling[borders[run] : borders[run + 1]].tobytes().decode() for run in runs]

    def find(self, text: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The concatenated runs of some lines (see `WordCache.encode`), and the end of each line's runs."""
        num_bytes, num_lines = int(offsets[-1] - offsets[0]), len(offsets) - 1
        self._reserve(num_bytes, num_lines)
        found = np.empty(num_bytes // 2 + num_lines, dtype=np.int32)  # a blank between any two runs of a line
        ends = np.empty(num_lines, dtype=np.int64)
        arrays = self._table, self._hashes, self._borders, self._spelling
        self._num_runs = look_up(text, offsets, *arrays, self._num_runs, found, ends)
        return found[: ends[-1]], ends

    def _reserve(self, num_bytes: int, num_lines: int) -> None:
        most = self._num_runs + num_bytes // 2 + num_lines
        self._hashes, self._borders = grown(self._hashes, most), grown(self._borders, most + 1)
        self._spelling = grown(self._spelling, int(self._borders[self._num_runs]) + num_bytes)
        if len(self._table) < 2 * most:
            self._table = np.zeros(1 << (2 * most).bit_length(), dtype=np.int32)
            enter_all(self._table, self._hashes, self._num_runs)


def count_runs(text: np.ndarray, offsets: np.ndarray) -> dict[str, int]:
    """How often each run occurs; `text` and `offsets` as in `WordCache.encode`."""
    runs, counts = RunTable(), np.zeros(0, dtype=np.int64)
    for first, last in _chunks(offsets):
        found, _ = runs.find(text, offsets[first : last + 1])
        counts = grown(counts, len(runs))
        counts[: len(runs)] += np.bincount(found, minlength=len(runs))
    return dict(zip(runs.texts(range(len(runs))), counts.tolist()))


class WordCache:
    """Ids by run.

    Args:
        ascii_words: tokenizes runs of printable ASCII.
        ids_of: returns the ids of other runs.
        dtype: of ids.
        most_runs: number of runs above which the cache is cleared.
    """

    def __init__(
        self,
        ascii_words: AsciiWords,
        ids_of: Callable[[list[str]], list[list[int]]],
        dtype: np.dtype[Any],
        most_runs: int,
    ) -> None:
        self._ascii, self._ids_of, self._dtype, self._most_runs = ascii_words, ids_of, dtype, most_runs
        self._forget()

    def __len__(self) -> int:
        return len(self._runs)

    def encode(self, text: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(total_tokens,) concatenated ids of all lines, and (num_lines,) int64 the number of ids of each line.

        Args:
            text: (num_bytes,) uint8, UTF-8.
            offsets: (num_lines + 1,) integers, start of each line, and the end of the last one.
        """
        lengths = np.zeros(len(offsets) - 1, dtype=np.int64)
        parts = [np.empty(0, dtype=self._dtype)]
        for first, last in _chunks(offsets):
            if len(self._runs) > self._most_runs:
                self._forget()
            before = len(self._runs)
            found, ends = self._runs.find(text, offsets[first : last + 1])
            self._learn(before)
            total = count_ids(found, ends, self._id_counts, lengths[first:last])
            ids = np.empty(total, dtype=self._dtype)
            write_ids(found, len(found), self._id_starts, self._id_counts, self._pool, ids)
            parts.append(ids)
        return np.concatenate(parts), lengths

    def _forget(self) -> None:
        self._runs, self._num_ids = RunTable(), 0
        self._id_starts: np.ndarray = np.zeros(0, dtype=np.int64)
        self._id_counts: np.ndarray = np.zeros(0, dtype=np.int32)
        self._pool: np.ndarray = np.empty(0, dtype=self._dtype)

    def _learn(self, before: int) -> None:
        """The ids of all runs from number `before` on."""
        num_runs, (borders, spelling) = len(self._runs), self._runs.spellings
        self._id_starts, self._id_counts = grown(self._id_starts, num_runs), grown(self._id_counts, num_runs)
        self._pool = grown(self._pool, self._num_ids + int(borders[num_runs] - borders[before]))  # no piece is empty
        ids = self._id_starts, self._id_counts, self._pool
        self._num_ids = self._ascii.cut(before, num_runs, borders, spelling, *ids, self._num_ids)
        others = (before + np.flatnonzero(self._id_counts[before:num_runs] < 0)).tolist()
        for run, found in zip(others, self._ids_of(self._runs.texts(others))):
            end = self._num_ids + len(found)
            self._pool = grown(self._pool, end)  # letters of other scripts may have more pieces than bytes
            self._pool[self._num_ids : end] = found
            self._id_starts[run], self._id_counts[run], self._num_ids = self._num_ids, len(found), end


def _chunks(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield ranges of lines with about _CHUNK_BYTES bytes, and at most as many lines."""
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + _CHUNK_BYTES, side="right")) - 1
        last = min(max(last, first + 1), first + _CHUNK_BYTES, len(offsets) - 1)
        yield first, last
        first = last


def grown(array: np.ndarray, size: int) -> np.ndarray:
    """The array, copied to a larger one if it has less than `size` elements."""
    if len(array) >= size:
        return array
    larger = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
