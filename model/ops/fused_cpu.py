"""Fused kernels for training on a CPU, compiled by numba: one pass over memory where torch makes several.

Each kernel processes rows [begin, end) of its arrays, so that threads can share the work (`model.ops.parallel_for`).
bf16 is passed as uint16, which numba supports. Other devices and precisions, and torch.compile, use the equivalent
torch operations, against which the kernels are tested.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from model.ops.keyed_dropout import hashes_of_row, stays

IGNORED = -100
"""The label of positions without a prediction; the default of torch's cross-entropy."""

_LOG2_E = np.float32(1.4426950408889634)
_LOWEST = np.float32(-126.0)  # 2 to this is the smallest normal number
# 2**f for f in [-0.5, 0.5]: the Taylor polynomial of exp(f ln 2), whose relative error there is below 2e-7.
_C1, _C2, _C3 = np.float32(0.6931471805599453), np.float32(0.2402265069591007), np.float32(0.05550410866482158)
_C4, _C5, _C6 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443), np.float32(0.00015403530393381608)
_ONE, _HALF = np.float32(1.0), np.float32(0.5)
_SHIFT, _BIAS, _MANTISSA = np.uint32(16), np.int32(127), np.int32(23)
_SIGN_OFF, _ROUND, _LAST_BIT = np.int16(0x7FFF), np.uint32(0x7FFF), np.uint32(1)


def bits(tensor: Tensor) -> np.ndarray:
    """A contiguous bf16 tensor on the CPU as uint16, without a copy."""
    array: np.ndarray = tensor.detach().view(torch.uint16).numpy()
    return array


@numba.njit(inline="always")
def _float(bf16: Any) -> Any:
    return np.uint32(np.uint32(bf16) << _SHIFT).view(np.float32)


@numba.njit(inline="always")
def _bf16(value: Any) -> Any:
    """Rounded to nearest, ties to even."""
    wide = np.float32(value).view(np.uint32)
    return np.uint16(np.uint32(wide + _ROUND + np.uint32(np.uint32(wide >> _SHIFT) & _LAST_BIT)) >> _SHIFT)


@numba.njit(inline="always")
def _exp(value: Any) -> Any:
    """exp of a float32 that is at most 0; NaN stays NaN."""
    power = value * _LOG2_E
    power = _LOWEST if power < _LOWEST else power
    whole = np.floor(power + _HALF)
    rest = power - whole
    series = _C6 * rest + _C5
    series = series * rest + _C4
    series = series * rest + _C3
    series = series * rest + _C2
    series = series * rest + _C1
    series = series * rest + _ONE
    return series * np.int32(np.int32(np.int32(whole) + _BIAS) << _MANTISSA).view(np.float32)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def cross_entropy(
    begin: int, end: int, logits: np.ndarray, labels: np.ndarray, log_sums: np.ndarray
) -> tuple[float, int]:
    """The sum of cross-entropies (nats) and the correct predictions of some rows.

    Args:
        logits: (rows, classes) uint16, bf16's bits.
        labels: (rows,) int64, a class or IGNORED.
        log_sums: (rows,) float32, is filled with the logarithm of the sum of exponentials of each row.
    """
    loss, num_correct = 0.0, 0
    for row in range(begin, end):
        line = logits[row].view(np.int16)
        largest = np.int16(-32768)
        for index in range(len(line)):  # as integers of the same order, whose maximum is vectorized
            value = line[index]
            key = np.int16(value ^ ((value >> 15) & _SIGN_OFF))
            largest = max(largest, key)
        top = _float(np.uint16(largest ^ ((largest >> 15) & _SIGN_OFF)))
        total = np.float32(0)
        for index in range(len(line)):
            total += _exp(_float(np.uint16(line[index])) - top)
        log_sum = top + np.log(total)
        log_sums[row] = log_sum
        if labels[row] != IGNORED:
            at_label = _float(logits[row, labels[row]])
            loss += log_sum - at_label
            num_correct += at_label == top
    return loss, num_correct


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def cross_entropy_gradient(
    begin: int, end: int, logits: np.ndarray, labels: np.ndarray, log_sums: np.ndarray, scale: np.float32
) -> None:
    """Turn logits into the gradient of `scale` times the sum of cross-entropies, in place."""
    for row in range(begin, end):
        line = logits[row]
        if labels[row] == IGNORED:
            line[:] = 0
            continue
        log_sum = log_sums[row]
        at_label = _float(line[labels[row]])
        for index in range(len(line)):
            line[index] = _bf16(_exp(_float(line[index]) - log_sum) * scale)
        line[labels[row]] = _bf16((_exp(at_label - log_sum) - _ONE) * scale)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def drop_add_norm(
    begin: int, end: int, given: tuple[Any, ...], found: tuple[Any, ...], dropout: tuple[Any, ...]
) -> None:
    """LayerNorm of residual + dropout(hidden), for some samples.

    Args:
        given: hidden, (batch, num_rows, width) uint16, bf16's bits; residual, the same shape, float32; scale and shift,
            (width,) float32; the eps of LayerNorm.
        found: arrays that are filled: the sums and the norms, of the shape of residual, and (batch, num_rows, 2)
            float32, each row's mean and inverse deviation.
        dropout: see `model.ops.keyed_dropout.dropout_arrays`.
    """
    hidden, residual, scale, shift, eps = given
    sums, normed, moments = found
    keys, rows, threshold, factor = dropout
    _, num_rows, width = normed.shape
    share, zero = _ONE / np.float32(width), np.float32(0)
    for sample in range(begin, end):
        for row in range(num_rows):
            first, second = hashes_of_row(keys, rows, sample, row)
            added, line, out = hidden[sample, row], sums[sample, row], normed[sample, row]
            old = residual[sample, row]
            total = np.float32(0)
            for column in range(width):
                kept = factor if stays(column, first, second, threshold) else zero
                value = old[column] + _float(added[column]) * kept
                line[column] = value
                total += value
            mean = total * share
            squares = np.float32(0)
            for column in range(width):
                value = line[column] - mean
                squares += value * value
            inverse = _ONE / np.sqrt(squares * share + eps)
            moments[sample, row, 0], moments[sample, row, 1] = mean, inverse
            for column in range(width):
                out[column] = (line[column] - mean) * inverse * scale[column] + shift[column]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def drop_add_norm_gradient(
    begin: int, end: int, together: int, given: tuple[Any, ...], found: tuple[Any, ...], dropout: tuple[Any, ...]
) -> None:
    """The backward pass of `drop_add_norm`, from the sums and moments that it wrote.

    Args:
        given: gradient, (batch, num_rows, width) float32; sums, moments and scale.
        found: gradients that are filled: of hidden and residual, in the gradient's shape, uint16 (bf16's bits) and
            float32; of scale and shift, (shares, width) float32, 0 before: what `together` samples add to them. Shares
            `begin` to `end` - 1 are computed.
    """
    gradient, sums, moments, scale = given
    to_hidden, to_residual, to_scale, to_shift = found
    keys, rows, threshold, factor = dropout
    batch, num_rows, width = gradient.shape
    share, zero = _ONE / np.float32(width), np.float32(0)
    for sample in range(begin * together, min(batch, end * together)):
        of_scale, of_shift = to_scale[sample // together], to_shift[sample // together]
        for row in range(num_rows):
            first, second = hashes_of_row(keys, rows, sample, row)
            mean, inverse = moments[sample, row, 0], moments[sample, row, 1]
            slope, line = gradient[sample, row], sums[sample, row]
            down, across = to_residual[sample, row], to_hidden[sample, row]
            along_one, along_line = np.float32(0), np.float32(0)
            for column in range(width):
                normal = (line[column] - mean) * inverse
                scaled = slope[column] * scale[column]
                along_one += scaled
                along_line += scaled * normal
                of_scale[column] += slope[column] * normal
                of_shift[column] += slope[column]
            along_one *= share
            along_line *= share
            for column in range(width):
                normal = (line[column] - mean) * inverse
                value = inverse * (slope[column] * scale[column] - along_one - normal * along_line)
                down[column] = value
                across[column] = _bf16(value * (factor if stays(column, first, second, threshold) else zero))


@numba.njit(inline="always")
def _fill_slopes(slopes: Any, gradient: Any, extra: Any, place: Any) -> None:
    """A row of a gradient in float32: `gradient`, and row `place` of `extra` where that is not negative."""
    for column in range(len(slopes)):
        slopes[column] = _float(gradient[column])
    if place >= 0:
        more = extra[place]
        for column in range(len(slopes)):
            slopes[column] += more[column]


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def sum_of_squares(gradient: np.ndarray, places: np.ndarray, extra: np.ndarray) -> np.float32:
    """Sum of squares of a gradient in the form that `adamw` reads."""
    total, slopes = np.float32(0), np.empty(gradient.shape[1], dtype=np.float32)
    for row in range(len(gradient)):
        line = gradient[row]
        if places[row] < 0:
            for column in range(len(line)):
                value = _float(line[column])
                total += value * value
        else:
            _fill_slopes(slopes, line, extra, places[row])
            for column in range(len(slopes)):
                total += slopes[column] * slopes[column]
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def adamw(
    gradient: np.ndarray,
    places: np.ndarray,
    weight: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    copy: np.ndarray,
    extra: np.ndarray,
    numbers: tuple[np.float32, ...],
) -> None:
    """A step of AdamW, in place.

    Args:
        gradient, copy: (rows, width) uint16, bf16's bits; `copy` is filled with the new weights, rounded.
        places: (rows,) int32, which row of `extra`, (any, width) float32, comes on top of a row of the gradient; -1 for
            none.
        weight, first, second: (rows, width) float32, the weights and their moments.
        numbers: the factor of the gradient; 1 - beta1, beta2 and 1 - beta2; what decay leaves of a weight; the learning
            rate and the deviations' factor, both with the bias correction; eps.
    """
    factor, new, old_squares, new_squares, kept, rate, spread, eps = numbers
    slopes = np.empty(weight.shape[1], dtype=np.float32)
    for row in range(len(weight)):
        _fill_slopes(slopes, gradient[row], extra, places[row])
        weights, means, squares, rounded = weight[row], first[row], second[row], copy[row]
        for column in range(len(slopes)):
            slope = slopes[column] * factor
            mean = means[column] + new * (slope - means[column])
            square = old_squares * squares[column] + new_squares * slope * slope
            means[column], squares[column] = mean, square
            value = weights[column] * kept - rate * mean / (np.sqrt(square) * spread + eps)
            weights[column] = value
            rounded[column] = _bf16(value)
