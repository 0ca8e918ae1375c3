"""Exact duplicates: documents that are equal but for case and blanks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

_BITS = 64
_RECENT = 1 << 18  # digests that are kept in a set before they are merged into the sorted array


def document_digest(sentences: Iterable[str]) -> int:
    """64 bits that name a document's text; case and blanks do not count.

    (Among seven million documents, two different ones share a digest with a chance of one in a million.)
    """
    text = " ".join(sentences).casefold()
    if "  " in text or not text.isprintable() or text.strip() != text:  # blanks of other kinds are not printable
        text = " ".join(text.split())
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=_BITS // 8).digest(), "big")


def share_of(digest: int, purpose: str) -> float:
    """A number in [0, 1) that depends only on a document and a purpose: what is selected by it stays selected when
    documents are added, and choices for different purposes are independent."""
    content = purpose.encode() + digest.to_bytes(_BITS // 8, "big")
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big") / 2**48


class SeenDigests:
    """A set of digests that takes 8 bytes for each, except the most recent ones."""

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted = np.empty(0, dtype=np.uint64)

    def add(self, digest: int) -> bool:
        """Remember a digest; False if it had been met before."""
        if digest in self._recent or self._in_sorted(digest):
            return False
        self._recent.add(digest)
        if len(self._recent) >= max(_RECENT, len(self._sorted) // 16):
            fresh = np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent))
            self._sorted = np.sort(np.concatenate([self._sorted, fresh]))
            self._recent = set()
        return True

    def add_all(self, digests: np.ndarray) -> np.ndarray:
        """Remember digests (num_digests,) uint64; which of them (num_digests,) bool had not been met before."""
        fresh = np.zeros(len(digests), dtype=bool)
        _, first = np.unique(digests, return_index=True)
        fresh[first] = True
        candidates = np.flatnonzero(fresh)
        for place, digest in zip(candidates.tolist(), digests[candidates].tolist()):
            fresh[place] = self.add(digest)
        return fresh

    def _in_sorted(self, digest: int) -> bool:
        if not len(self._sorted):
            return False
        place = int(np.searchsorted(self._sorted, np.uint64(digest)))
        return place < len(self._sorted) and int(self._sorted[place]) == digest
