"""The counter-hash generator: the same in every form, uniform, and independent of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.common.rng import below, draw, unit
from model.ops.keyed_dropout import DropoutKey, keep_factors, keep_mask


def rows(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32)[None]


def test_below_and_unit_stay_inside_and_are_even() -> None:
    bits = list(draw(np.uint64(7), np.arange(20_000, dtype=np.uint64)))
    counts = np.bincount([below(value, 10) for value in bits], minlength=10)
    assert len(counts) == 10 and counts.min() > 1800 and counts.max() < 2200
    units = np.array([unit(value) for value in bits])
    assert units.min() >= 0 and units.max() < 1 and abs(units.mean() - 0.5) < 0.01


def test_numba_and_torch_drop_the_same_elements() -> None:
    keys = DropoutKey(1, 2, torch.tensor([5, 2**40, 7])).expand(4)[3]
    for rate in (0.1, 0.5):
        kept = keep_mask(keys, rows(33), 70, rate)
        factors = keep_factors(keys, rows(33), 70, rate)
        assert torch.equal(factors > 0, kept)
        assert factors.max().item() == pytest.approx(1 / (1 - rate))


def test_threads_drop_the_same_elements() -> None:
    keys, before = DropoutKey(1, 2, torch.arange(5)).expand(1)[0], torch.get_num_threads()
    factors = []
    for num in (1, 3):
        torch.set_num_threads(num)
        factors.append(keep_factors(keys, rows(128), 1024, 0.1))  # enough to be shared
    torch.set_num_threads(before)
    assert torch.equal(*factors)


def test_rows_of_each_sample_may_differ() -> None:
    keys = DropoutKey(1, 2, torch.tensor([5, 6])).expand(1)[0]
    whole = keep_factors(keys, rows(20), 16, 0.3)
    picked = torch.tensor([[0, 4, 9], [0, 19, 2]], dtype=torch.int32)
    found = keep_factors(keys, picked, 16, 0.3)
    for sample in range(2):
        assert torch.equal(found[sample], whole[sample, picked[sample].long()])


def test_rate_is_met_within_one_in_ten_thousand() -> None:
    dropped = total = 0
    for step in range(40):
        for site in DropoutKey(9, step, torch.arange(64)).expand(4):
            mask = keep_mask(site, rows(64), 256, 0.1)
            dropped += mask.numel() - int(mask.sum())
            total += mask.numel()
    assert abs(dropped / total - 0.1) < 1e-4


def test_neighbors_are_uncorrelated() -> None:
    keys = DropoutKey(3, 1, torch.arange(256)).expand(2)
    first, second = (keep_mask(site, rows(64), 128, 0.1).float() - 0.9 for site in keys)
    bound = 5 * 0.09 / first.numel() ** 0.5  # five deviations
    pairs = [(first[..., 1:], first[..., :-1]), (first[:, 1:], first[:, :-1]), (first[1:], first[:-1]), (first, second)]
    for one, other in pairs:
        assert abs((one * other).mean().item()) < bound
