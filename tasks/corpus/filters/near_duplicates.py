"""Near duplicates: documents that share most of their runs of words, found by MinHash and locality-sensitive hashing.

A document's signature (Broder 1997) has one byte for each of some hash functions: the low byte of the least value that
the function takes on the document's shingles, which are its runs of five words. The share of equal bytes estimates the
Jaccard similarity of two documents' shingles (b-bit minwise hashing, Li and König 2010). Signatures are made per
document, anywhere; the index then takes documents in their order, and the first of a group of near duplicates stays.

An index holds 128 + 4 * 18 + 4 + 36 to 72 bytes for each document that stays, at the defaults: 240 to 280 MB a million.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numba
import numpy as np

from model.common.rng import Domain, Integer, Key, mix
from tasks.corpus.sources.hashed_words import prefixes
from tasks.params.corpus import NearDuplicateSettings

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_CHANCE = 1 / 256  # that two bytes are equal for no reason
_MOST_COMPARED = 200  # documents of one bucket: bounds the time that a million documents of one template take
_SPREAD = np.uint32(0x9E3779B1)


def signature_of(words: np.ndarray, settings: NearDuplicateSettings) -> np.ndarray:
    """(num_hashes,) uint8: the signature of a document.

    Args:
        words: (num_words,) uint64, as tasks.corpus.sources.hashed_words makes them. Fewer than a shingle's are one
        shingle.
    """
    signature = np.empty(settings.num_hashes, dtype=np.uint8)
    _sign(words, settings.shingle_words, _multipliers(settings.num_hashes), signature)
    return signature


def similarity(first: np.ndarray, second: np.ndarray) -> float:
    """The Jaccard similarity that two signatures estimate; 0 where they agree no more than by chance."""
    return _estimate(int(np.count_nonzero(first == second)), len(first))


def exact_similarity(first: np.ndarray, second: np.ndarray, shingle_words: int = 5) -> float:
    """The Jaccard similarity of two documents' shingles, from their words."""
    shingles = [set(_shingles(words, shingle_words).tolist()) for words in (first, second)]
    return len(shingles[0] & shingles[1]) / max(1, len(shingles[0] | shingles[1]))


@dataclass(frozen=True)
class Matches:
    """Near duplicates of the documents that were offered to the index."""

    earlier: np.ndarray
    """(num_documents,) int64: the number (from 0, in the order of all that were offered) of an earlier document that
    stays and is a near duplicate of this one; -1 where there is none, so that this one stays."""
    similarity: np.ndarray
    """(num_documents,) float32: the estimated similarity to that one; 0 where there is none."""


class NearDuplicates:
    """The documents that stay, for telling whether a later one is like them. Deterministic in the order of documents.

    Args:
        settings: what makes near duplicates.
        num_documents: how many will be offered at most. Memory is reserved for them, and used by those that stay.
    """

    def __init__(self, settings: NearDuplicateSettings, num_documents: int) -> None:
        self._settings = settings
        num_bands, self._rows = settings.bands
        slots = 1 << max(4, (max(1, num_documents) - 1).bit_length() - 1)  # one or two documents a slot
        self._signatures = np.empty((num_documents, settings.num_hashes), dtype=np.uint8)
        self._numbers = np.empty(num_documents, dtype=np.uint32)
        self._next = np.empty((num_documents, num_bands), dtype=np.uint32)
        self._heads = np.zeros((num_bands, slots), dtype=np.uint32)
        self._kept = 0
        self._offered = 0
        wanted = settings.decision * (1 - _CHANCE) + _CHANCE
        self._needed = math.ceil(wanted * settings.num_hashes - 1e-9)

    def __len__(self) -> int:
        return self._kept

    def add(self, signatures: np.ndarray) -> Matches:
        """Offer documents in their order; those without an earlier near duplicate stay in the index.

        Args:
            signatures: (num_documents, num_hashes) uint8.
        """
        assert self._kept + len(signatures) <= len(self._signatures), "more documents than the index was made for"
        earlier = np.full(len(signatures), -1, dtype=np.int64)
        equal = np.zeros(len(signatures), dtype=np.int64)
        self._kept = _add(
            signatures, self._signatures, self._numbers, self._next, self._heads, self._kept, self._offered,
            self._rows, self._needed, earlier, equal,
        )  # fmt: skip
        self._offered += len(signatures)
        estimates = [_estimate(int(count), self._settings.num_hashes) if count else 0.0 for count in equal]
        return Matches(earlier, np.array(estimates, dtype=np.float32))


def _estimate(num_equal: int, num_hashes: int) -> float:
    return max(0.0, (num_equal / num_hashes - _CHANCE) / (1 - _CHANCE))


@functools.cache
def _multipliers(num_hashes: int) -> np.ndarray:
    """(num_hashes, 2) uint32: factor (odd) and summand of each hash function."""
    keys = [Key(7).for_(Domain.MINHASH, number) for number in range(num_hashes)]
    return np.array([[(key >> 32) | 1, key & 0xFFFFFFFF] for key in keys], dtype=np.uint32)


@numba.njit(cache=True, nogil=True)
def _shingles(words: np.ndarray, length: int) -> np.ndarray:
    """(num_shingles,) uint64."""
    length = min(length, len(words))
    sums = prefixes(words, _FACTOR)
    power = np.uint64(1)
    for _ in range(length):
        power *= _FACTOR
    shingles = np.empty(len(words) - length + 1, dtype=np.uint64)
    for place in range(len(shingles)):
        shingles[place] = mix(sums[place + length] - sums[place] * power)
    return shingles


@numba.njit(cache=True, nogil=True)
def _sign(words: np.ndarray, length: int, multipliers: np.ndarray, signature: np.ndarray) -> None:
    num_hashes = len(multipliers)
    factors, summands = multipliers[:, 0].copy(), multipliers[:, 1].copy()
    least = np.full(num_hashes, 0xFFFFFFFF, dtype=np.uint32)
    for shingle in _shingles(words, length):
        value = np.uint32(shingle >> np.uint64(32))
        for number in range(num_hashes):
            least[number] = min(least[number], np.uint32(np.uint32(value * factors[number]) + summands[number]))
    for number in range(num_hashes):
        signature[number] = np.uint8(np.uint32(least[number] * _SPREAD) >> np.uint32(24))


@numba.njit(cache=True, nogil=True)
def _slot(signature: np.ndarray, band: int, rows: int, slots: int) -> Integer:
    key = np.uint64(band + 1)
    for row in range(band * rows, (band + 1) * rows):
        key = (key << np.uint64(8)) | np.uint64(signature[row])
    return np.int64(mix(key) & np.uint64(slots - 1))


@numba.njit(cache=True, nogil=True)
def _num_equal(first: np.ndarray, second: np.ndarray, start: int, end: int) -> int:
    count = 0
    for place in range(start, end):
        count += first[place] == second[place]
    return count


@numba.njit(cache=True, nogil=True)
def _add(
    signatures: np.ndarray, store: np.ndarray, numbers: np.ndarray, following: np.ndarray, heads: np.ndarray,
    kept: int, offered: int, rows: int, needed: int, earlier: np.ndarray, equal: np.ndarray,
) -> int:  # fmt: skip
    """Fills `earlier` and `equal`; how many are kept then. `heads` and `following` hold a place in `store` plus 1."""
    num_bands, slots = heads.shape
    places = np.empty(num_bands, dtype=np.int64)
    for document in range(len(signatures)):
        signature = signatures[document]
        for band in range(num_bands):
            places[band] = _slot(signature, band, rows, slots)
            link, compared = heads[band, places[band]], 0
            while link and compared < _MOST_COMPARED:
                other = store[link - 1]
                if _num_equal(signature, other, band * rows, (band + 1) * rows) == rows:
                    compared += 1
                    count = _num_equal(signature, other, 0, len(signature))
                    if count >= needed:
                        earlier[document] = numbers[link - 1]
                        equal[document] = count
                        break
                link = following[link - 1, band]
            if earlier[document] >= 0:
                break
        if earlier[document] < 0:
            store[kept] = signature
            numbers[kept] = offered + document
            for band in range(num_bands):
                following[kept, band] = heads[band, places[band]]
                heads[band, places[band]] = kept + 1
            kept += 1
    return kept
