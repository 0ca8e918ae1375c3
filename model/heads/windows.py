"""Overlapping windows over texts longer than a sequence, and the window with most context for each token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Window = tuple[int, int]  # first token, number of tokens


def windows(num_tokens: int, capacity: int, stride: int) -> list[Window]:
    """Windows of at most `capacity` tokens, `stride` apart, that cover all tokens.

    There is at least one window, which is empty if there are no tokens.
    """
    assert capacity > 0 and stride > 0
    found: list[Window] = []
    start = 0
    while True:
        length = min(num_tokens - start, capacity)
        found.append((start, length))
        if start + length >= num_tokens:
            return found
        start += min(length, stride)


def owners(num_tokens: int, spans: list[Window]) -> npt.NDArray[np.int64]:
    """The window of each token in which the smaller of its left and right context is largest.

    Ties go to the longer window, then to the earlier one (the paper's code, `_check_is_max_context`).
    """
    owner = np.zeros(num_tokens, dtype=np.int64)
    if len(spans) == 1:
        return owner
    best = np.full(num_tokens, -1.0)
    for number, (start, length) in enumerate(spans):
        position = np.arange(length)
        context = np.minimum(position, length - 1 - position) + 0.01 * length
        better = context > best[start : start + length]
        owner[start : start + length][better] = number
        best[start : start + length][better] = context[better]
    return owner
