"""Keys and the 64-bit stream of each, for plain and compiled code; needs no torch, so that processes start soon.

The mixer is the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

Integer = Any
"""In compiled code: one of numpy's 64-bit integers."""

_GOLDEN_64 = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_SHIFT_A, _SHIFT_B, _SHIFT_C = np.uint64(30), np.uint64(27), np.uint64(31)
_SHIFT_32, _SHIFT_11 = np.uint64(32), np.uint64(11)
_UNIT = 1.0 / (1 << 53)


@numba.njit(cache=True, nogil=True)
def mix(value: Integer) -> Integer:
    """A bijection of 64-bit integers whose output bits each depend on all input bits."""
    value = (value ^ (value >> _SHIFT_A)) * _MIX_A
    value = (value ^ (value >> _SHIFT_B)) * _MIX_B
    return value ^ (value >> _SHIFT_C)


@numba.njit(cache=True, nogil=True)
def fold(key: Integer, number: Integer) -> Integer:
    """The key of `number` below `key`: chain it to key by (seed, epoch, document) and the like."""
    return mix((key ^ mix(number + _GOLDEN_64)) + _GOLDEN_64)


@numba.njit(cache=True, nogil=True)
def draw(key: Integer, index: Integer) -> Integer:
    """Number `index` (0, 1, ...) of the stream of `key`: 64 random bits."""
    return mix(key + (index + np.uint64(1)) * _GOLDEN_64)


@numba.njit(cache=True, nogil=True)
def below(bits: Integer, limit: Integer) -> Integer:
    """An integer in [0, limit) from 64 random bits; limit < 2**32 (the bias is below limit / 2**32)."""
    return np.int64(((bits >> _SHIFT_32) * np.uint64(limit)) >> _SHIFT_32)


@numba.njit(cache=True, nogil=True)
def unit(bits: Integer) -> float:
    """A number in [0, 1) from 64 random bits."""
    return np.float64(bits >> _SHIFT_11) * _UNIT


def key_of(*numbers: int) -> int:
    """The 64-bit key of a tuple of non-negative integers."""
    with np.errstate(over="ignore"):
        key = np.uint64(0)
        for number in numbers:
            key = fold_plain(key, np.uint64(number))
    return int(key)


def _mix(value: Any) -> Any:
    value = (value ^ (value >> _SHIFT_A)) * _MIX_A
    value = (value ^ (value >> _SHIFT_B)) * _MIX_B
    return value ^ (value >> _SHIFT_C)


def fold_plain(key: Any, number: Any) -> Any:
    return _mix((key ^ _mix(number + _GOLDEN_64)) + _GOLDEN_64)


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
