"""Permutations that a key names: no shuffled array is kept, and any place is known at once."""

from __future__ import annotations

import numba
import numpy as np

from model.keys import Integer, fold, mix


@numba.njit(cache=True, nogil=True)
def permute(index: int, size: int, key: Integer) -> Integer:
    """Where `index` goes in the permutation of range(size) that `key` names.

    A Feistel network of six rounds over the smallest even number of bits, walked until it falls inside: a bijection
    that needs no memory.
    """
    half = 1
    while (1 << (2 * half)) < size:
        half += 1
    low = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    value = np.uint64(index)
    while True:
        left, right = value >> shift, value & low
        for turn in range(6):
            left, right = right, left ^ (mix(fold(key, np.uint64(turn)) + right) & low)
        value = (left << shift) | right
        if value < np.uint64(size):
            return np.int64(value)


@numba.njit(cache=True, nogil=True)
def permute_range(first: int, count: int, size: int, key: Integer) -> np.ndarray:
    """(count,) int64: where `first` to `first + count - 1` go; see `permute`."""
    rows = np.empty(count, dtype=np.int64)
    for index in range(count):
        rows[index] = permute(first + index, size, key)
    return rows
