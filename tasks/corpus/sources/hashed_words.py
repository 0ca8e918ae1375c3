"""Hash the normalized words of a document to 64 bits, to find near duplicates, contamination and repetition.

Case, punctuation and character composition are ignored, and so are apostrophes and invisible characters inside a word
("don’t" is "dont"). In scripts without spaces (Chinese, Thai), each character is a word.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

from model.common.rng import Integer, fold, mix

_BREAK, _LETTER, _ALONE, _PASSED, _BORDER = range(5)
_PASSED_OVER = "'’‘ʼ`´\u00ad\u200b\u200c\u200d\u2060\ufeff"
_NO_BLANKS = (  # (first, last) code points of scripts without spaces between words
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # radicals
    (0x3040, 0x30FF),  # kana
    (0x31F0, 0x31FF),
    (0x3400, 0x9FFF),  # Han
    (0xF900, 0xFAFF),
    (0x20000, 0x323AF),
)
LAST_POINT = 0x323FF
"""No letter of a living script has a higher code point."""
_FIRST = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)


@dataclass(frozen=True)
class HashedWords:
    """Hashes of the words of a document, in order."""

    words: np.ndarray
    """(num_words,) uint64."""
    starts: np.ndarray
    """(num_sentences + 1,) int64: the index of each sentence's first word, then the number of words."""

    @property
    def sentence_digests(self) -> np.ndarray:
        """Return (num_sentences,) uint64 hashes, equal for sentences with the same words; 0 for no words."""
        return _sentence_digests(self.words, self.starts)


def hash_words(sentences: Sequence[str]) -> HashedWords:
    """Hash the words of sentences, which must not contain line breaks."""
    text = "\n".join(sentences).casefold()
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    points = code_points(text)
    words = np.empty(len(points), dtype=np.uint64)
    starts = np.zeros(len(sentences) + 1, dtype=np.int64)
    count = _hash_words(points, _kinds(), words, starts)
    return HashedWords(words[:count].copy(), starts)


def code_points(text: str) -> np.ndarray:
    """Return the code points of a text, (num_characters,) uint32."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)


@functools.cache
def _kinds() -> np.ndarray:
    """Return the kind of each code point, (LAST_POINT + 1,) uint8."""
    kinds = np.zeros(LAST_POINT + 1, dtype=np.uint8)
    for point in range(LAST_POINT):
        character = chr(point)
        if character.isalnum() or unicodedata.category(character)[0] == "M":
            kinds[point] = _LETTER
    for first, last in _NO_BLANKS:
        part = kinds[first : last + 1]
        part[part == _LETTER] = _ALONE
        marks = [point for point in range(first, last + 1) if unicodedata.category(chr(point))[0] == "M"]
        kinds[marks] = _LETTER
    kinds[[ord(character) for character in _PASSED_OVER]] = _PASSED
    kinds[ord("\n")] = _BORDER
    return kinds


@numba.njit(cache=True, nogil=True)
def _hash_words(points: np.ndarray, kinds: np.ndarray, words: np.ndarray, starts: np.ndarray) -> int:
    count, sentence = 0, 0
    state, inside = _FIRST, False
    for point in points:
        kind = kinds[min(point, np.uint32(len(kinds) - 1))]
        if kind == _PASSED:
            continue
        if inside and kind != _LETTER:
            words[count] = mix(state)
            count += 1
            state, inside = _FIRST, False
        if kind in (_LETTER, _ALONE):
            state = (state ^ np.uint64(point)) * _PRIME
            inside = True
        elif kind == _BORDER:
            sentence += 1
            if sentence < len(starts):
                starts[sentence] = count
    if inside:
        words[count] = mix(state)
        count += 1
    starts[len(starts) - 1] = count
    return count


@numba.njit(cache=True, nogil=True)
def _sentence_digests(words: np.ndarray, starts: np.ndarray) -> np.ndarray:
    digests = np.zeros(len(starts) - 1, dtype=np.uint64)
    for sentence in range(len(digests)):
        for place in range(starts[sentence], starts[sentence + 1]):
            digests[sentence] = fold(digests[sentence], words[place])
    return digests


@numba.njit(cache=True, nogil=True)
def hash_runs(words: np.ndarray, length: int, factor: Integer) -> np.ndarray:
    """Return (num_words - length + 1,) uint64: the polynomial hash in `factor` of each run of `length` words."""
    hashes = np.empty(max(0, len(words) - length + 1), dtype=np.uint64)
    value, power = np.uint64(0), np.uint64(1)
    for place in range(min(length, len(words))):
        value = value * factor + words[place]
        power *= factor
    for place in range(len(hashes)):
        hashes[place] = value
        if place + length < len(words):
            value = value * factor + words[place + length] - words[place] * power
    return hashes
