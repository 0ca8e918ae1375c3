"""Counter-based random numbers: every number is a function of a key, so there is no state to save.

A key is derived from a seed, a domain (the purpose of the numbers) and indices such as the epoch and document.
Each key defines a stream of 64-bit numbers. The mixer is the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
This module does not import torch, so that processes start quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numba
import numpy as np
from numba.extending import register_jitable

Integer = Any
"""A numpy 64-bit integer in compiled code."""

GOLDEN_64 = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, the increment of SplitMix64
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_SHIFT_A, _SHIFT_B, _SHIFT_C = np.uint64(30), np.uint64(27), np.uint64(31)
_SHIFT_32, _SHIFT_11 = np.uint64(32), np.uint64(11)
_UNIT = 1.0 / (1 << 53)


class Domain(IntEnum):
    """Purposes of random numbers."""

    SAMPLER = 0  # cutting documents into samples, by (phase, epoch)
    SAMPLE_ORDER = 1  # order of the samples of an epoch, by (phase, epoch)
    MASK = 2  # masked tokens; folded with the sample
    DROPOUT = 3  # dropout, by (step,); folded with the dropout layer and the sample
    INITIALIZATION = 4  # initial weights, by the bytes of the parameter's name
    POOLER = 5  # re-initialized pooler in fine-tuning
    LAYER = 6  # re-initialized layers in fine-tuning, by (layer,)
    LSTM = 7  # initial weights of the BiLSTM on frozen features, by (layer,)
    ADAPTER = 8  # initial weights of LoRA adapters, by the bytes of the matrix's name
    ROW_ORDER = 9  # order of the rows in fine-tuning, by (epoch,)
    BATCH_ORDER = 10  # order of the batches in fine-tuning, by (epoch,)
    ROW_SUBSET = 11  # the rows that are kept of a dataset with too many
    MINHASH = 12  # hash functions of MinHash, by (function,)


# Numbers folded in before and after the caller's numbers. Domains that are not listed share one key space.
_PREFIX: dict[Domain, int] = {Domain.MASK: 0x6D61736B, Domain.POOLER: 1, Domain.LAYER: 2}
_SUFFIX: dict[Domain, int] = {Domain.SAMPLER: 0, Domain.SAMPLE_ORDER: 1, Domain.ROW_ORDER: 0, Domain.BATCH_ORDER: 1}


@dataclass(frozen=True)
class Key:
    """The root of all keys derived from a seed."""

    seed: int

    def for_(self, domain: Domain, *numbers: int) -> int:
        """Derive the 64-bit key of non-negative `numbers` in a domain."""
        prefix = [_PREFIX[domain]] if domain in _PREFIX else []
        suffix = [_SUFFIX[domain]] if domain in _SUFFIX else []
        with np.errstate(over="ignore"):
            key = np.uint64(0)
            for number in (self.seed, *prefix, *numbers, *suffix):
                key = fold(key, np.uint64(number))
        return int(key)


@register_jitable
def mix(value: Integer) -> Integer:
    """Apply a bijection of 64-bit integers (numbers or arrays) in which every output bit depends on all input bits."""
    value = (value ^ (value >> _SHIFT_A)) * _MIX_A
    value = (value ^ (value >> _SHIFT_B)) * _MIX_B
    return value ^ (value >> _SHIFT_C)


@register_jitable
def fold(key: Integer, number: Integer) -> Integer:
    """Derive the subkey `number` of `key`; chain calls for keys such as (epoch, document). Takes numbers or arrays."""
    return mix((key ^ mix(number + GOLDEN_64)) + GOLDEN_64)


@register_jitable
def draw(key: Integer, index: Integer) -> Integer:
    """Return number `index` (0, 1, ...) of the stream of `key`: 64 random bits. Takes numbers or arrays."""
    return mix(key + (index + np.uint64(1)) * GOLDEN_64)


def permutation(size: int, key: int) -> np.ndarray:
    """Return the permutation of range(size) that belongs to `key`, (size,) int64, by sorting random numbers."""
    return np.argsort(draw(np.uint64(key), np.arange(size, dtype=np.uint64)), kind="stable")


@numba.njit(cache=True, nogil=True)
def below(bits: Integer, limit: Integer) -> Integer:
    """Convert 64 random bits to an integer in [0, limit); limit < 2**32 (the bias is below limit / 2**32)."""
    return np.int64(((bits >> _SHIFT_32) * np.uint64(limit)) >> _SHIFT_32)


@numba.njit(cache=True, nogil=True)
def unit(bits: Integer) -> float:
    """Convert 64 random bits to a number in [0, 1)."""
    return np.float64(bits >> _SHIFT_11) * _UNIT


@numba.njit(cache=True, nogil=True)
def permute(index: int, size: int, key: Integer) -> Integer:
    """Return the position of `index` in the permutation of range(size) that belongs to `key`.

    A Feistel network of six rounds over the smallest even number of bits, repeated until the result is below `size`: a
    bijection that needs no memory.
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
    """Return the positions of `first` to `first + count - 1`, (count,) int64; see `permute`."""
    rows = np.empty(count, dtype=np.int64)
    for index in range(count):
        rows[index] = permute(first + index, size, key)
    return rows
