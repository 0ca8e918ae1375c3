"""Random numbers of the synthetic dataset, from `random.Random(seed).random()`, stable across Python versions."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class RandomSource:
    """Random numbers for one named file, so that changing one file does not affect the others."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        self._next = random.Random(int.from_bytes(digest[:8], "big")).random

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._next() < probability

    def below(self, limit: int) -> int:
        """Return an integer from 0 to limit - 1."""
        return int(self._next() * limit)

    def between(self, low: int, high: int) -> int:
        """Return an integer from low to high, inclusive."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        """Return a random item."""
        return items[int(self._next() * len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` different items in random order."""
        assert count <= len(items)
        return self.shuffled(items)[:count]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return all items in random order (Fisher–Yates shuffle)."""
        mixed = list(items)
        for last in range(len(mixed) - 1, 0, -1):
            other = self.below(last + 1)
            mixed[last], mixed[other] = mixed[other], mixed[last]
        return mixed
