"""Repetition: sentences that occur twice in a document, and sentences that many documents share."""

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
    def merged(cls, counts: Sequence[Self], min_documents: int = 1) -> Self:
        """The counts of all these documents together, of sentences in `min_documents` or more."""
        digests = np.concatenate([np.empty(0, np.uint64), *(one.digests for one in counts)])
        numbers = np.concatenate([np.empty(0, np.uint32), *(one.documents for one in counts)])
        order = np.argsort(digests, kind="stable")
        return cls(*_summed(digests[order], numbers[order], min_documents))

    def holds(self, digests: np.ndarray) -> np.ndarray:
        """(num_sentences,) bool: which of these sentences are among the counted ones."""
        if not len(self.digests):
            return np.zeros(len(digests), dtype=bool)
        places = np.minimum(np.searchsorted(self.digests, digests), len(self.digests) - 1)
        return self.digests[places] == digests


@numba.njit(cache=True, nogil=True)
def _summed(digests: np.ndarray, numbers: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Join equal neighbors and add their numbers; leave out those whose sum is below `least`."""
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
