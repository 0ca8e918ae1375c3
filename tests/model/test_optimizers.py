"""AdamW as BERT's release has it, beside the formula and beside torch's."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from model.optimizers import bert_adamw
from model.schedules import constant_with_warmup, linear_warmup_decay

RATE, DECAY, BETAS, EPS = 1e-2, 0.1, (0.9, 0.99), 1e-6


def train(bias_correction: bool) -> tuple[nn.Linear, list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    start = [parameter.detach().clone() for parameter in layer.parameters()]
    optimizer = bert_adamw(layer, RATE, DECAY, BETAS, EPS, bias_correction)
    gradients = []
    for _ in range(5):
        gradients.append([torch.randn_like(parameter) for parameter in layer.parameters()])
        for parameter, gradient in zip(layer.parameters(), gradients[-1]):
            parameter.grad = gradient.clone()
        optimizer.step()
        optimizer.zero_grad()
    return layer, start, gradients  # type: ignore[return-value]


def test_no_bias_correction_and_no_decay_of_vectors() -> None:
    layer, start, gradients = train(bias_correction=False)
    for index, (parameter, value) in enumerate(zip(layer.parameters(), start)):
        first, second = torch.zeros_like(value), torch.zeros_like(value)
        for step in gradients:
            first = BETAS[0] * first + (1 - BETAS[0]) * step[index]
            second = BETAS[1] * second + (1 - BETAS[1]) * step[index] ** 2
            update = first / (second.sqrt() + EPS) + (DECAY * value if value.ndim > 1 else 0.0)
            value = value - RATE * update
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-5, atol=1e-6)


def test_bias_correction_is_torchs() -> None:
    layer, start, gradients = train(bias_correction=True)
    torch.manual_seed(0)
    other = nn.Linear(6, 4)
    groups = [{"params": [other.weight], "weight_decay": DECAY}, {"params": [other.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS, foreach=False, fused=False)
    for step in gradients:
        for parameter, gradient in zip(other.parameters(), step):
            parameter.grad = gradient
        optimizer.step()
    torch.testing.assert_close(layer.weight, other.weight)
    torch.testing.assert_close(layer.bias, other.bias)
    assert not torch.equal(layer.weight, start[0])


def test_schedule_rises_then_falls_to_zero() -> None:
    factors = [linear_warmup_decay(step, 100, 10) for step in range(101)]
    assert factors[0] == 0.1 and factors[9] == 1.0 and factors[10] == 1.0
    assert factors[55] == 0.5 and factors[99] > 0 and factors[100] == 0.0
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[10:]))


def test_constant_schedule_only_rises() -> None:
    assert [constant_with_warmup(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert constant_with_warmup(0, 0) == 1.0
