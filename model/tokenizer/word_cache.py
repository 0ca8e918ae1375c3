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
# Bytes of text that are processed at a time; tables have space for all runs that these could contain.
_CHUNK_BYTES = 1 << 18
_MOST_RUNS = 1 << 21  # above which the cache is cleared: some 300 MB
_FNV_PRIME, _FNV_START = np.uint64(0x100000001B3), np.uint64(0xCBF29CE484222325)
_SHIFT = np.uint64(29)

Table = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""A hash table of byte strings: (slots,) int32, a power of two in length, the number of a string plus 1, or 0;
(capacity,) uint64, the hash of each string; (capacity + 1,) int64 and (capacity in bytes,) uint8, where string n is
bytes[borders[n] : borders[n + 1]]."""


@numba.njit(cache=True, nogil=True)
def _settled(value: Integer) -> Integer:
    """A hash whose low bits depend on the high bits, for use as a table index."""
    return value ^ (value >> _SHIFT)


@numba.njit(cache=True, nogil=True)
def _same_bytes(one: np.ndarray, start: Integer, other: np.ndarray, begin: Integer, length: Integer) -> bool:
    for index in range(length):  # noqa: SIM110 (compiled, a generator would not be)
        if one[start + index] != other[begin + index]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _look_up(
    text: np.ndarray, offsets: np.ndarray, table: Table, num_runs: int, found: np.ndarray, ends: np.ndarray
) -> int:
    """Look up the numbers of all runs of some lines, and enter new runs.

    Args:
        text: (num_bytes,) uint8.
        offsets: (num_lines + 1,) start of each line, and the end of the last one.
        num_runs: runs entered so far.
        found: output, the runs of all lines.
        ends: (num_lines,) output, the end of each line's runs in `found`.

    Returns:
        Number of runs after new ones are entered.
    """
    slots, hashes, borders, spelling = table
    mask, count = len(slots) - 1, 0
    for line in range(len(ends)):
        at, end = offsets[line], offsets[line + 1]
        while at < end:
            if text[at] == _BLANK:
                at += 1
                continue
            first, value = at, _FNV_START
            while at < end and text[at] != _BLANK:
                value = (value ^ np.uint64(text[at])) * _FNV_PRIME
                at += 1
            value = _settled(value)
            length = at - first
            slot = np.int64(value & np.uint64(mask))
            while True:  # `_find` would take half as long again
                run = slots[slot] - 1
                if run < 0:
                    run = num_runs
                    slots[slot], hashes[run] = run + 1, value
                    begin = borders[run]
                    for index in range(length):
                        spelling[begin + index] = text[first + index]
                    borders[run + 1] = begin + length
                    num_runs += 1
                    break
                begin = borders[run]
                same_size = hashes[run] == value and borders[run + 1] - begin == length
                if same_size and _same_bytes(spelling, begin, text, first, length):
                    break
                slot = (slot + 1) & mask
            found[count] = run
            count += 1
        ends[line] = count
    return num_runs


@numba.njit(cache=True, nogil=True)
def _enter_all(slots: np.ndarray, hashes: np.ndarray, num_runs: int) -> None:
    """Enter the runs into an empty table."""
    mask = len(slots) - 1
    for run in range(num_runs):
        slot = np.int64(hashes[run] & np.uint64(mask))
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = run + 1


def compiled_is_loaded() -> bool:
    """Check whether this process has loaded the compiled code, which takes about a second."""
    return bool(_look_up.signatures)


class RunTable:
    """Numbers runs of characters between blanks in order of their first occurrence."""

    def __init__(self) -> None:
        self._num_runs = 0
        slots, borders = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int64)
        self.table: Table = slots, np.empty(0, dtype=np.uint64), borders, np.empty(0, dtype=np.uint8)

    def __len__(self) -> int:
        return self._num_runs

    def texts(self, runs: Iterable[int]) -> list[str]:
        """The runs of these numbers."""
        _, _, borders, spelling = self.table
        return [spelling[borders[run] : borders[run + 1]].tobytes().decode() for run in runs]

    def find(self, text: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The concatenated runs of some lines (see `WordCache.encode`), and the end of each line's runs."""
        num_bytes, num_lines = int(offsets[-1] - offsets[0]), len(offsets) - 1
        most_found = num_bytes // 2 + num_lines  # a blank between any two runs of a line
        self._reserve(self._num_runs + most_found, num_bytes)
        found, ends = np.empty(most_found, dtype=np.int32), np.empty(num_lines, dtype=np.int64)
        self._num_runs = _look_up(text, offsets, self.table, self._num_runs, found, ends)
        return found[: ends[-1]], ends

    def _reserve(self, most: int, num_bytes: int) -> None:
        slots, hashes, borders, spelling = self.table
        hashes, borders = _grown(hashes, most), _grown(borders, most + 1)
        spelling = _grown(spelling, int(borders[self._num_runs]) + num_bytes)
        if len(slots) < 2 * most:
            slots = np.zeros(1 << (2 * most).bit_length(), dtype=np.int32)
            _enter_all(slots, hashes, self._num_runs)
        self.table = slots, hashes, borders, spelling


def count_runs(text: np.ndarray, offsets: np.ndarray) -> dict[str, int]:
    """How often each run occurs; `text` and `offsets` as in `WordCache.encode`."""
    runs, counts = RunTable(), np.zeros(0, dtype=np.int64)
    for first, last in _chunks(offsets):
        found, _ = runs.find(text, offsets[first : last + 1])
        counts = _grown(counts, len(runs))
        counts[: len(runs)] += np.bincount(found, minlength=len(runs))
    return dict(zip(runs.texts(range(len(runs))), counts.tolist()))


@numba.njit(cache=True, nogil=True)
def _is_alphanumeric(byte: Integer) -> bool:
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122


@numba.njit(cache=True, nogil=True, forceinline=True)
def _find(table: Table, value: Integer, text: np.ndarray, start: Integer, length: Integer) -> Integer:
    """The number of the string text[start : start + length], whose hash is `value`; -1 if it is not in the table."""
    slots, hashes, borders, spelling = table
    mask = len(slots) - 1
    slot = np.int64(value & np.uint64(mask))
    while slots[slot] != 0:
        number = slots[slot] - 1
        begin = borders[number]
        same_size = hashes[number] == value and borders[number + 1] - begin == length
        if same_size and _same_bytes(spelling, begin, text, start, length):
            return number
        slot = (slot + 1) & mask
    return -1


@numba.njit(cache=True, nogil=True)
def _tokenize(
    first_run: int,
    last_run: int,
    runs: Table,
    ids_of_runs: tuple[np.ndarray, np.ndarray, np.ndarray],
    num_ids: int,
    pieces: tuple[Table, np.ndarray, Table, np.ndarray],
    rules: tuple[int, int, int, int],
) -> int:
    """Append the ids of runs `first_run` to `last_run` - 1 to a pool, and return its new end.

    Args:
        ids_of_runs: start and number of each run's ids in the pool, and the pool. The number is -1 for runs that are
            not printable ASCII.
        pieces: table and ids of the pieces that begin a word, and of those that continue one.
        rules: whether text is made lower-case, the longest word and the longest piece in characters, and the id of an
            unknown word.
    """
    _, _, run_borders, run_spelling = runs
    id_starts, id_counts, pool = ids_of_runs
    beginning, beginning_ids, continuing, continuing_ids = pieces
    lowercase, longest_word, longest_piece, unknown = rules
    hashes = np.empty(longest_piece + 1, dtype=np.uint64)  # of all prefixes
    hashes[0] = _FNV_START
    for run in range(first_run, last_run):
        text = run_spelling[run_borders[run] : run_borders[run + 1]].copy()
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
            if _is_alphanumeric(text[word]):
                while at < len(text) and _is_alphanumeric(text[at]):
                    at += 1
            begin_of_word, start, known = num_ids, word, at - word <= longest_word
            while known and start < at:
                most = min(at - start, longest_piece)
                for index in range(most):
                    hashes[index + 1] = (hashes[index] ^ np.uint64(text[start + index])) * _FNV_PRIME
                known = False
                for length in range(most, 0, -1):
                    value = _settled(hashes[length])
                    if start > word:
                        number = _find(continuing, value, text, start, length)
                    else:
                        number = _find(beginning, value, text, start, length)
                    if number >= 0:
                        pool[num_ids] = continuing_ids[number] if start > word else beginning_ids[number]
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


@numba.njit(cache=True, nogil=True)
def _write_ids(
    found: np.ndarray, ends: np.ndarray, ids_of_runs: tuple[np.ndarray, np.ndarray, np.ndarray], lengths: np.ndarray
) -> np.ndarray:
    """The concatenated ids of the runs `found`; the number of ids of each line is written to `lengths`."""
    id_starts, id_counts, pool = ids_of_runs
    first, total = 0, 0
    for line in range(len(ends)):
        of_line = 0
        for index in range(first, ends[line]):
            of_line += id_counts[found[index]]
        lengths[line] = of_line
        total += of_line
        first = ends[line]
    ids, at = np.empty(total, dtype=pool.dtype), 0
    for index in range(len(found)):
        start = id_starts[found[index]]
        for place in range(start, start + id_counts[found[index]]):
            ids[at] = pool[place]
            at += 1
    return ids


class WordCache:
    """Ids by run.

    Args:
        model: the WordPiece model, as in tokenizer.json.
        lowercase: whether text is made lower-case.
        ids_of: returns the ids of runs that are not printable ASCII.
        dtype: of ids.
    """

    def __init__(
        self,
        model: Mapping[str, Any],
        lowercase: bool,
        ids_of: Callable[[list[str]], list[list[int]]],
        dtype: np.dtype[Any],
    ) -> None:
        self._ids_of, self._dtype = ids_of, dtype
        vocabulary, prefix = model["vocab"], model["continuing_subword_prefix"]
        # A piece that is spelled with the prefix may also begin a word: "##" is text, too.
        beginning = {piece: number for piece, number in vocabulary.items() if _is_printable_ascii(piece)}
        continuing = {piece.removeprefix(prefix): n for piece, n in beginning.items() if piece.startswith(prefix)}
        continuing.pop("", None)
        self._pieces = *_table_of(beginning), *_table_of(continuing)
        longest_piece = max(map(len, beginning), default=1)
        self._rules = lowercase, model["max_input_chars_per_word"], longest_piece, vocabulary[model["unk_token"]]
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
            if len(self._runs) > _MOST_RUNS:
                self._forget()
            before = len(self._runs)
            found, ends = self._runs.find(text, offsets[first : last + 1])
            self._learn(before)
            parts.append(_write_ids(found, ends, self._ids_of_runs, lengths[first:last]))
        return np.concatenate(parts), lengths

    def _forget(self) -> None:
        self._runs, self._num_ids = RunTable(), 0
        starts, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        self._ids_of_runs = starts, counts, np.empty(0, dtype=self._dtype)

    def _learn(self, before: int) -> None:
        """Tokenize all runs from number `before` on."""
        num_runs, (_, _, borders, _) = len(self._runs), self._runs.table
        starts, counts, pool = self._ids_of_runs
        starts, counts = _grown(starts, num_runs), _grown(counts, num_runs)
        pool = _grown(pool, self._num_ids + int(borders[num_runs] - borders[before]))  # no piece is empty
        given = self._runs.table, (starts, counts, pool), self._num_ids, self._pieces, self._rules
        self._num_ids = _tokenize(before, num_runs, *given)
        others = (before + np.flatnonzero(counts[before:num_runs] < 0)).tolist()
        for run, found in zip(others, self._ids_of(self._runs.texts(others))):
            end = self._num_ids + len(found)
            pool = _grown(pool, end)  # letters of other scripts may have more pieces than bytes
            pool[self._num_ids : end] = found
            starts[run], counts[run], self._num_ids = self._num_ids, len(found), end
        self._ids_of_runs = starts, counts, pool


def _is_printable_ascii(piece: str) -> bool:
    return piece.isascii() and piece.isprintable() and piece != "" and " " not in piece


def _table_of(pieces: Mapping[str, int]) -> tuple[Table, np.ndarray]:
    """The pieces in a table, and their ids."""
    runs, text = RunTable(), np.frombuffer(" ".join(pieces).encode(), dtype=np.uint8)
    runs.find(text, np.array([0, len(text)]))
    return runs.table, np.array(list(pieces.values()), dtype=np.int64)


def _chunks(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield ranges of lines with about _CHUNK_BYTES bytes, and at most as many lines."""
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + _CHUNK_BYTES, side="right")) - 1
        last = min(max(last, first + 1), first + _CHUNK_BYTES, len(offsets) - 1)
        yield first, last
        first = last


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    """The array, copied to a larger one if it has less than `size` elements."""
    if len(array) >= size:
        return array
    larger = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
