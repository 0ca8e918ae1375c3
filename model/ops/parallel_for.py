"""Parallel loops over rows for kernels compiled by numba, on as many threads as torch may use."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

_pool: tuple[int, ThreadPoolExecutor] | None = None


_WORTH_SHARING = 1 << 19  # elements; below this, waking a thread costs more than it saves


def parallel_for_rows(kernel: Callable[..., Any], shape: Sequence[int], *arrays: Any) -> list[Any]:
    """Run `kernel(begin, end, *arrays)` over the rows of a `shape`, one share per thread.

    The result of a row must not depend on the thread that computes it. Returns the result of each share.
    """
    num_rows = shape[0]
    num_threads = min(torch.get_num_threads(), num_rows) if math.prod(shape) >= _WORTH_SHARING else 1
    if num_threads <= 1:
        return [kernel(0, num_rows, *arrays)]
    global _pool
    if _pool is None or _pool[0] != os.getpid():  # threads do not survive a fork
        _pool = (os.getpid(), ThreadPoolExecutor(torch.get_num_threads(), "kernels"))
    borders = [num_rows * share // num_threads for share in range(num_threads + 1)]
    shares = [_pool[1].submit(kernel, begin, end, *arrays) for begin, end in itertools.pairwise(borders[1:])]
    return [kernel(0, borders[1], *arrays), *(share.result() for share in shares)]


_BLOCK = 1 << 18  # elements; small enough for equal shares, large enough to pay for a call


def parallel_for_blocks(
    kernel: Callable[..., Any], matrices: Sequence[tuple[tuple[np.ndarray, ...], np.ndarray]], *settings: Any
) -> list[Any]:
    """Run `kernel(*blocks, whole, *settings)` for blocks of rows of each (arrays, whole), shared among threads.

    Returns the result of each block, in order; the blocks do not depend on the number of threads.
    """
    pieces = []
    for arrays, whole in matrices:
        num_rows, width = arrays[0].shape
        size = max(1, _BLOCK // width)
        for begin in range(0, num_rows, size):
            pieces.append((*(array[begin : begin + size] for array in arrays), whole))

    def run(begin: int, end: int) -> list[Any]:
        return [kernel(*piece, *settings) for piece in pieces[begin:end]]

    return [answer for share in parallel_for_rows(run, (len(pieces), _BLOCK)) for answer in share] if pieces else []
