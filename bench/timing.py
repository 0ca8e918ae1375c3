"""Device, random inputs and step timer for both sides of a comparison."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

_WARM_UP = 3  # steps before the clock starts (allocation, kernels, compilation)


def device() -> torch.device:
    """Return a GPU if available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def random_pairs(batch: int, length: int, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids and segments (batch, length), whose second half is the second segment, and pair labels (batch,)."""
    ids = torch.randint(5, vocab_size, (batch, length), device=device())
    segments = torch.zeros_like(ids)
    segments[:, length // 2 :] = 1
    return ids, segments, torch.randint(0, 2, (batch,), device=device())


def median_seconds(step: Callable[[int], object], num_steps: int) -> float:
    """Return the median seconds of a call of `step`, which gets its number, after warm-up."""
    seconds = []
    for number in range(_WARM_UP + num_steps):
        before = time.perf_counter()
        step(number)
        if device().type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - before)
    return statistics.median(seconds[_WARM_UP:])
