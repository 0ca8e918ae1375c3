"""Keyed dropout: whether an element is dropped is a hash of its position, with no generator state to save.

The position is (seed, step, dropout layer, global sample, row, column). Dropout therefore depends neither on the batch
that a sample is in nor on the rank that computes it. The 32-bit constants are those of the `lowbias32` hash (Wellons
2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import torch
from torch import Tensor

from model.common.rng import Domain, Integer, Key, fold
from model.ops.parallel_for import parallel_for_rows


@dataclass(frozen=True)
class DropoutKey:
    """The seed, step and samples that dropout of a batch depends on."""

    seed: int
    step: int
    """The optimizer step, counted from 0."""
    samples: Tensor
    """(batch,) int64: the global number of each sample of the batch."""

    def expand(self, num_dropouts: int) -> Tensor:
        """Keys of all dropout layers, as (num_dropouts, batch, 2) int32 on the samples' device."""
        samples = self.samples.cpu().numpy().astype(np.uint64)
        with np.errstate(over="ignore"):
            at_step = np.uint64(Key(self.seed).for_(Domain.DROPOUT, self.step))
            at_site = fold(at_step, np.arange(num_dropouts, dtype=np.uint64))
            keys = fold(at_site[:, None], samples[None, :])
        pairs = torch.from_numpy(keys.view(np.int32).reshape(num_dropouts, len(samples), 2))
        return pairs.to(self.samples.device, non_blocking=True)


_GOLDEN = 0x9E3779B1 - 2**32  # as int32: odd, near 2**32 / golden ratio
_STRIDE = 0x85EBCA77 - 2**32
_MUL_A = 0x7FEB352D
_MUL_B = 0x846CA68B - 2**32
# The same for compiled code, which has unsigned numbers.
_GOLDEN_32, _STRIDE_32 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_MUL_A_32, _MUL_B_32 = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_SHIFT_15, _SHIFT_16, _TOP_BIT = np.uint32(15), np.uint32(16), np.uint32(0x80000000)


def _mix_rows(value: Tensor) -> Tensor:
    value = (value ^ ((value >> 16) & 0xFFFF)) * _MUL_A
    value = (value ^ ((value >> 15) & 0x1FFFF)) * _MUL_B
    return value ^ ((value >> 16) & 0xFFFF)


def keep_threshold(rate: float) -> int:
    """The int32 that a uniform int32 reaches or exceeds with probability 1 - rate."""
    return round(rate * 2**32) - 2**31


def keep_mask(keys: Tensor, rows: Tensor, width: int, rate: float) -> Tensor:
    """Mask of the elements that are kept, (batch, num_rows, width) bool, by torch operations that a compiler fuses.

    Args:
        keys: (batch, 2) int32, the keys of one dropout layer.
        rows: (batch or 1, num_rows) int32, the number of each row in its sample (a position, or a position and a head).
    """
    columns = torch.arange(width, dtype=torch.int32, device=keys.device)
    first, second = row_hashes(keys[:, None], rows)
    return keep_at(first[:, :, None], second[:, :, None], columns, rate)


def row_hashes(keys: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The part of the hash that all elements of a row share: two int32 tensors of the shape of `rows`.

    `keys` (..., 2) and `rows` (...) int32 are the keys of a dropout layer and the number of each row in its sample.
    """
    places = rows * _STRIDE
    return _mix_rows(keys[..., 0] + places), _mix_rows(keys[..., 1] ^ places)


def keep_at(first: Tensor, second: Tensor, column: Tensor, rate: float) -> Tensor:
    """Mask of the elements at `column` that are kept, from the `row_hashes` of their rows (broadcast)."""
    value = column * _GOLDEN + first
    value = (value ^ ((value >> 16) & 0xFFFF)) * _MUL_A + second
    value = (value ^ ((value >> 15) & 0x1FFFF)) * _MUL_B
    return value >= keep_threshold(rate)


@numba.njit(inline="always")
def _mix_row(value: Integer) -> Integer:
    value = np.uint32((value ^ (value >> _SHIFT_16)) * _MUL_A_32)
    value = np.uint32((value ^ (value >> _SHIFT_15)) * _MUL_B_32)
    return np.uint32(value ^ (value >> _SHIFT_16))


@numba.njit(inline="always")
def hashes_of_row(keys: np.ndarray, rows: np.ndarray, sample: Integer, row: Integer) -> tuple[Integer, Integer]:
    """`row_hashes` of one row of a sample, as uint32."""
    place = np.uint32(np.uint32(rows[sample % len(rows), row]) * _STRIDE_32)
    return _mix_row(np.uint32(keys[sample, 0] + place)), _mix_row(np.uint32(keys[sample, 1] ^ place))


@numba.njit(inline="always")
def stays(column: Integer, first: Integer, second: Integer, threshold: Integer) -> bool:
    """`keep_mask` of one element, given the hashes of its row."""
    value = np.uint32(np.uint32(column) * _GOLDEN_32 + first)
    value = np.uint32(np.uint32((value ^ (value >> _SHIFT_16)) * _MUL_A_32) + second)
    value = np.uint32((value ^ (value >> _SHIFT_15)) * _MUL_B_32)
    return np.uint32(value ^ _TOP_BIT) >= threshold


@numba.njit(cache=True, nogil=True)
def _fill_keep_factors(
    begin: int, end: int, factors: np.ndarray, dropout: tuple[np.ndarray, np.ndarray, np.uint32, np.float32]
) -> None:
    keys, rows, threshold, kept = dropout
    _, num_rows, width = factors.shape
    zero = np.float32(0)
    for sample in range(begin, end):
        for row in range(num_rows):
            first, second = hashes_of_row(keys, rows, sample, row)
            line = factors[sample, row]
            for column in range(width):
                line[column] = kept if stays(column, first, second, threshold) else zero


def dropout_arrays(keys: Tensor, rows: Tensor, rate: float) -> tuple[np.ndarray, np.ndarray, np.uint32, np.float32]:
    """Arguments of compiled code: keys and rows as arrays, threshold of `stays`, factor of kept elements."""
    return keys.numpy().view(np.uint32), rows.numpy(), np.uint32(round(rate * 2**32)), np.float32(1.0 / (1.0 - rate))


def keep_factors(keys: Tensor, rows: Tensor, width: int, rate: float) -> Tensor:
    """The factors of dropout: `keep_mask` times 1 / (1 - rate), (batch, num_rows, width) fp32.

    On a CPU in eager mode one pass of a numba kernel computes them.
    """
    factor = 1.0 / (1.0 - rate)
    if keys.device.type != "cpu" or torch.compiler.is_compiling():
        return keep_mask(keys, rows, width, rate).to(torch.float32) * factor
    factors = torch.empty((len(keys), rows.shape[1], width), dtype=torch.float32)
    parallel_for_rows(_fill_keep_factors, factors.shape, factors.numpy(), dropout_arrays(keys, rows, rate))
    return factors
