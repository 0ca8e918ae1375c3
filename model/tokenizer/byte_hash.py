"""Hashes of bytes that grow by a byte at a time (FNV-1a), for tables in compiled code."""

from __future__ import annotations

import numba
import numpy as np

from model.common.rng import Integer

FNV_PRIME, FNV_START = np.uint64(0x100000001B3), np.uint64(0xCBF29CE484222325)
_SHIFT = np.uint64(29)


@numba.njit(cache=True, nogil=True)
def settled(value: Integer) -> Integer:
    """A hash whose low bits depend on the high ones, to be cut to a place in a table."""
    return value ^ (value >> _SHIFT)


@numba.njit(cache=True, nogil=True)
def same_bytes(one: np.ndarray, start: Integer, other: np.ndarray, begin: Integer, length: Integer) -> bool:
    """Whether two stretches of bytes are equal."""
    for index in range(length):  # noqa: SIM110 (compiled, a generator would not be)
        if one[start + index] != other[begin + index]:
            return False
    return True
