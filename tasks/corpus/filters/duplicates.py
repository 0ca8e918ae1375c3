"""Duplicates: find documents that differ only in case and whitespace, and near duplicates.

Near duplicates share most of their shingles; they are found by MinHash and locality-sensitive hashing.

A document's signature (Broder 1997) has one byte per hash function: the low byte of the function's minimum over the
document's shingles, which are its runs of five words. The share of equal bytes in two signatures estimates the Jaccard
similarity of the two documents' shingles (b-bit minwise hashing, Li and König 2010). Workers compute the signatures
independently; the index then processes documents in order and keeps the first of each group of near duplicates.

With the default settings, the index needs 240 to 280 bytes (128 + 4 * 18 + 4 + 36 to 72) for each document it keeps.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable

import numba
import numpy as np

from model.common.files import fraction_of
from model.common.rng import Domain, Integer, Key, mix
from tasks.corpus.sources.hashed_words import hash_runs
from tasks.params.corpus import NearDuplicateSettings

_BITS = 64
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_CHANCE = 1 / 256  # probability that two bytes are equal by chance
_MOST_COMPARED = 200  # per bucket: bounds the time for a million documents from one template
_SPREAD = np.uint32(0x9E3779B1)


def document_digest(sentences: Iterable[str]) -> int:
    """Return a 64-bit hash of a document's text, ignoring case and whitespace.

    Among seven million different documents, the probability of any collision is about one in a million.
    """
    text = " ".join(sentences).casefold()
    if "  " in text or not text.isprintable() or text.strip() != text:  # whitespace other than a space is not printable
        text = " ".join(text.split())
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=_BITS // 8).digest(), "big")


def share_of(digest: int, purpose: str) -> float:
    """Map a document and a purpose to a number in [0, 1). Adding documents never changes earlier choices, and choices
    for different purposes are independent."""
    return fraction_of(purpose.encode() + digest.to_bytes(_BITS // 8, "big"))


class SeenDigests:
    """A set of digests that needs 8 bytes per digest."""

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []  # sorted, each longer than the next

    def add_all(self, digests: np.ndarray) -> np.ndarray:
        """Add (num_digests,) uint64 digests and return a (num_digests,) bool mask of those not seen before."""
        run, first = np.unique(digests, return_index=True)
        for seen in self._runs:
            places = np.minimum(np.searchsorted(seen, run), len(seen) - 1)
            is_new = seen[places] != run
            run, first = run[is_new], first[is_new]
        fresh = np.zeros(len(digests), dtype=bool)
        fresh[first] = True
        while self._runs and len(self._runs[-1]) <= len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        if len(run):
            self._runs.append(run)
        return fresh


def signature_of(words: np.ndarray, settings: NearDuplicateSettings) -> np.ndarray:
    """Compute the (num_hashes,) uint8 signature of a document from its (num_words,) uint64 words.

    A document shorter than a shingle counts as one shingle.
    """
    signature = np.empty(settings.num_hashes, dtype=np.uint8)
    _sign(words, settings.shingle_words, _multipliers(settings.num_hashes), signature)
    return signature


class NearDuplicates:
    """Index of kept documents that detects near duplicates. The result depends only on the order of documents.

    Up to `num_documents` documents can be added. Memory is reserved for all of them, but only kept documents use it.
    """

    def __init__(self, settings: NearDuplicateSettings, num_documents: int) -> None:
        self._settings = settings
        num_bands, self._rows = settings.bands
        slots = 1 << max(4, (max(1, num_documents) - 1).bit_length() - 1)  # one or two documents per slot
        self._signatures = np.empty((num_documents, settings.num_hashes), dtype=np.uint8)
        self._numbers = np.empty(num_documents, dtype=np.uint32)
        self._next = np.empty((num_documents, num_bands), dtype=np.uint32)
        self._heads = np.zeros((num_bands, slots), dtype=np.uint32)
        self._kept = 0
        self._offered = 0
        wanted = settings.decision * (1 - _CHANCE) + _CHANCE
        self._needed = math.ceil(wanted * settings.num_hashes - 1e-9)

    def add(self, signatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add documents by their (num_documents, num_hashes) signatures; keep those without a near duplicate.

        Returns:
            (num_documents,) int64: for each document, the number of a kept near duplicate, counted from 0 over all
                documents added so far, or -1 if there is none.
            (num_documents,) float32: the estimated Jaccard similarity to that near duplicate, or 0 if there is none.
        """
        assert self._kept + len(signatures) <= len(self._signatures), "more documents than num_documents"
        earlier = np.full(len(signatures), -1, dtype=np.int64)
        equal = np.zeros(len(signatures), dtype=np.int64)
        self._kept = _add(
            signatures, self._signatures, self._numbers, self._next, self._heads, self._kept, self._offered,
            self._rows, self._needed, earlier, equal,
        )  # fmt: skip
        self._offered += len(signatures)
        similarity = np.maximum(0, (equal / self._settings.num_hashes - _CHANCE) / (1 - _CHANCE))
        return earlier, similarity.astype(np.float32)


@functools.cache
def _multipliers(num_hashes: int) -> np.ndarray:
    """Return the (odd factor, summand) of each hash function, (num_hashes, 2) uint32."""
    keys = [Key(7).for_(Domain.MINHASH, number) for number in range(num_hashes)]
    return np.array([[(key >> 32) | 1, key & 0xFFFFFFFF] for key in keys], dtype=np.uint32)


@numba.njit(cache=True, nogil=True)
def _sign(words: np.ndarray, length: int, multipliers: np.ndarray, signature: np.ndarray) -> None:
    num_hashes = len(multipliers)
    factors, summands = multipliers[:, 0].copy(), multipliers[:, 1].copy()
    least = np.full(num_hashes, 0xFFFFFFFF, dtype=np.uint32)
    for shingle in hash_runs(words, min(length, len(words)), _FACTOR):
        value = np.uint32(mix(shingle) >> np.uint64(32))
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
    """Fill `earlier` and `equal`; return the number of kept documents. `heads` and `following` index `store` from 1."""
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
