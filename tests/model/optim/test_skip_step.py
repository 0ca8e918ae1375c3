"""Steps that are not taken: no numbers, and spikes."""

from __future__ import annotations

import torch

from model.optim.optimizers import SkipStep

NAN, INF = float("nan"), float("inf")


def judged(guard: SkipStep, norms: list[float]) -> list[int]:
    return [int(guard.judge(torch.tensor(norm)).item()) for norm in norms]


def test_only_finite_norms_pass() -> None:
    assert judged(SkipStep(None, torch.device("cpu")), [1.0, NAN, 1e9, INF, 1.0]) == [0, 1, 0, 1, 0]


def test_a_spike_is_measured_by_the_norms_that_were_taken() -> None:
    guard = SkipStep(4.0, torch.device("cpu"))
    assert judged(guard, [8.0] + [1.0] * 30) == [0] * 31  # the first norms are large, and no spikes
    assert judged(guard, [3.0, 50.0, NAN, 50.0, 1.0]) == [0, 1, 1, 1, 0]  # a spike does not make the next one usual


def test_a_guard_goes_on_where_it_was() -> None:
    norms = torch.rand(60, generator=torch.Generator().manual_seed(0)).mul(3).tolist()
    whole, first, second = (SkipStep(1.5, torch.device("cpu")) for _ in range(3))
    expected = judged(whole, norms)
    begun = judged(first, norms[:35])
    second.restore(first.state())
    assert begun + judged(second, norms[35:]) == expected
    assert 0 < sum(expected) < 30
