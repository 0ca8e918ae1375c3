"""Repetition: sentences that a document says twice, and sentences that many documents share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numba
import numpy as np

from tasks.corpus.sources.hashed_words import HashedWords


@dataclass(frozen=True)
class RepeatedShares:
    """Repeated shares of a document."""

    sentences: float
    """Share of the sentences that equal an earlier one."""
    words: float
    """Share of the words in such sentences."""


def repeated_shares(document: HashedWords) -> RepeatedShares:
    """Share of sentences, and of their words, that occurred earlier in the document."""
    digests = document.sentence_digests
    num_words = np.diff(document.starts)
    spoken = num_words > 0
    digests, num_words = digests[spoken], num_words[spoken]
    if not len(digests):
        return RepeatedShares(0.0, 0.0)
    again = np.ones(len(digests), dtype=bool)
    again[np.unique(digests, return_index=True)[1]] = False
    return RepeatedShares(float(again.mean()), float(num_words[again].sum() / num_words.sum()))


@dataclass(frozen=True)
class SentenceCounts:
    """Number of documents that contain each sentence; takes 12 bytes per sentence."""

    digests: np.ndarray
    """(num_sentences,) uint64, ascending, as HashedWords.sentence_digests."""
    documents: np.ndarray
    """(num_sentences,) uint32."""

    @classmethod
    def of(cls, documents: Iterable[np.ndarray]) -> Self:
        """The counts of some documents, each given as its (num_sentences,) digests."""
        once = [np.unique(digests) for digests in documents]
        digests, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *once]), return_counts=True)
        spoken = digests != 0
        return cls(digests[spoken], counts[spoken].astype(np.uint32))

    @classmethod
    def merged(cls, counts: Sequence[Self], min_documents: int = 1, num_parts: int = 1) -> Self:
        """The counts of all these documents together, of sentences in `min_documents` or more.

        Args:
            counts: of parts of the corpus; memory-mapped arrays are welcome.
            min_documents: rarer sentences are left out.
            num_parts: passes that the digests are cut into; the memory is that of the largest.
        """
        kept_digests, kept_counts = [np.empty(0, np.uint64)], [np.empty(0, np.uint32)]
        for part in range(num_parts):
            slices = [_slice(one.digests, part, num_parts) for one in counts]
            digests = np.concatenate([np.empty(0, np.uint64), *(one.digests[at] for one, at in zip(counts, slices))])
            numbers = np.concatenate([np.empty(0, np.uint32), *(one.documents[at] for one, at in zip(counts, slices))])
            order = np.argsort(digests, kind="stable")
            digests, numbers = _summed(digests[order], numbers[order], min_documents)
            kept_digests.append(digests)
            kept_counts.append(numbers)
        return cls(np.concatenate(kept_digests), np.concatenate(kept_counts))

    def holds(self, digests: np.ndarray) -> np.ndarray:
        """(num_sentences,) bool: which of these sentences are among the counted ones."""
        if not len(self.digests):
            return np.zeros(len(digests), dtype=bool)
        places = np.minimum(np.searchsorted(self.digests, digests), len(self.digests) - 1)
        return self.digests[places] == digests

    def top(self, number: int) -> list[tuple[int, int]]:
        """(Digest, documents) of the sentences that stand in the most documents."""
        order = np.lexsort((self.digests, -self.documents.astype(np.int64)))[:number]
        return [(int(self.digests[at]), int(self.documents[at])) for at in order]


def _slice(digests: np.ndarray, part: int, num_parts: int) -> slice:
    edges = [part * (1 << 64) // num_parts, (part + 1) * (1 << 64) // num_parts]
    first = np.searchsorted(digests, np.uint64(edges[0]))
    last = len(digests) if part + 1 == num_parts else np.searchsorted(digests, np.uint64(edges[1]))
    return slice(int(first), int(last))


@numba.njit(cache=True, nogil=True)
def _summed(digests: np.ndarray, numbers: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Equal neighbours joined, their numbers added; those whose sum is below `least` left out."""
    count, place = 0, 0
    while place < len(digests):
        digest, total = digests[place], np.int64(0)
        while place < len(digests) and digests[place] == digest:
            total += numbers[place]
            place += 1
        if total >= least:
            digests[count], numbers[count] = digest, np.uint32(total)
            count += 1
    return digests[:count].copy(), numbers[:count].copy()
