"""Optimisers beside their formulas and beside torch's, steps that are passed over, and schedules."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from model.config.encoder import EncoderShape
from model.config.schedules import Schedule, linear_warmup_decay
from model.objectives.masked_lm import PretrainingModule
from model.optim.optimizers import make_optimizer, orthogonal

RATE, DECAY, BETAS, EPS = 1e-2, 0.1, (0.9, 0.99), 1e-6


def train(kind: str) -> tuple[nn.Linear, list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    start = [parameter.detach().clone() for parameter in layer.parameters()]
    optimizer = make_optimizer(layer, kind, RATE, DECAY, BETAS, EPS)
    gradients = []
    for _ in range(5):
        gradients.append([torch.randn_like(parameter) for parameter in layer.parameters()])
        for parameter, gradient in zip(layer.parameters(), gradients[-1]):
            parameter.grad = gradient.clone()
        optimizer.step()
        optimizer.zero_grad()
    return layer, start, gradients  # type: ignore[return-value]


def test_no_bias_correction_and_no_decay_of_vectors() -> None:
    layer, start, gradients = train("bert_adamw")
    for index, (parameter, value) in enumerate(zip(layer.parameters(), start)):
        first, second = torch.zeros_like(value), torch.zeros_like(value)
        for step in gradients:
            first = BETAS[0] * first + (1 - BETAS[0]) * step[index]
            second = BETAS[1] * second + (1 - BETAS[1]) * step[index] ** 2
            update = first / (second.sqrt() + EPS) + (DECAY * value if value.ndim > 1 else 0.0)
            value = value - RATE * update
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-5, atol=1e-6)


def test_bias_correction_is_torchs() -> None:
    layer, start, gradients = train("adamw")
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


def test_every_schedule_warms_up_and_ends_at_its_floor() -> None:
    for kind in ("linear", "cosine", "stable"):
        schedule = Schedule(kind=kind, floor=0.1)
        factors = [schedule.factor(step, 100, 10) for step in range(101)]
        assert factors[:10] == [(step + 1) / 10 for step in range(10)]
        assert factors[10] == pytest.approx(1.0) and factors[100] == pytest.approx(0.1)
        assert all(later <= earlier for earlier, later in itertools.pairwise(factors[10:]))
    assert Schedule(kind="cosine").factor(55, 100, 10) == pytest.approx(0.5)
    stable = [Schedule(kind="stable", decay=0.2).factor(step, 100, 10) for step in range(101)]
    assert set(stable[10:81]) == {1.0} and stable[85] == pytest.approx(1 - 0.25**0.5)
    assert {Schedule(kind="constant").factor(step, 100, 0) for step in range(101)} == {1.0}
    assert [Schedule().factor(step, 100, 10) for step in range(101)] == [
        linear_warmup_decay(step, 100, 10) for step in range(101)
    ]


def test_lamb_scales_each_matrix_to_its_own_norm() -> None:
    layer, start, gradients = train("lamb")
    for index, (parameter, value) in enumerate(zip(layer.parameters(), start)):
        first, second = torch.zeros_like(value), torch.zeros_like(value)
        for count, step in enumerate(gradients, start=1):
            first = BETAS[0] * first + (1 - BETAS[0]) * step[index]
            second = BETAS[1] * second + (1 - BETAS[1]) * step[index] ** 2
            update = first / (1 - BETAS[0] ** count) / ((second / (1 - BETAS[1] ** count)).sqrt() + EPS)
            if value.ndim > 1:
                update = update + DECAY * value
                update = update * value.norm() / update.norm()
            value = value - RATE * update
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(64, 64), (64, 256), (256, 64)])
def test_muon_s_direction_is_nearly_orthogonal(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.svdvals(orthogonal(matrix).float())
    # The quintic does not converge, by design; five turns are too few for the smallest values of a square matrix.
    assert singular[-3] > 0.5 and singular[0] < 1.35


def test_muon_moves_what_is_inside_the_layers() -> None:
    module = PretrainingModule(EncoderShape(preset="tiny").build(200), True)
    optimizer = make_optimizer(module, "muon", 0.01)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    by_rule: dict[str, set[str]] = {}
    for group in optimizer.param_groups:
        by_rule.setdefault(group["rule"], set()).update(names[id(p)] for p in group["params"])
    assert by_rule["muon"] == {
        f"encoder.layers.{layer}.{name}.weight"
        for layer in range(2)
        for name in ("attention.query_key_value", "attention.output", "widen", "narrow")
    }
    assert by_rule["adamw"] == set(names.values()) - by_rule["muon"]
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for p in module.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    for name, p in module.named_parameters():
        if name in by_rule["muon"]:  # 0.01 times AdamW's usual size of an update; decay adds 1e-4 of the weight
            assert (p - before[name]).square().mean().sqrt().item() == pytest.approx(0.002, rel=0.25)


@pytest.mark.parametrize("kind", ["bert_adamw", "adamw", "lamb", "muon"])
def test_a_step_that_is_passed_over_leaves_no_trace(kind: str) -> None:
    def trained(spoilt: bool) -> list[torch.Tensor]:
        module = PretrainingModule(EncoderShape(preset="tiny").build(200), True)
        chance = torch.Generator().manual_seed(0)
        for p in module.parameters():
            p.data = torch.randn(p.shape, generator=chance) * 0.02
        optimizer = make_optimizer(module, kind, 0.01)
        for step in range(3):
            for p in module.parameters():
                p.grad = torch.randn(p.shape, generator=chance)
            if spoilt and step == 1:
                kept = [p.grad for p in module.parameters()]
                for p in module.parameters():
                    p.grad = torch.full_like(p, float("nan"))
                optimizer.skip = torch.ones(())
                optimizer.step()
                for p, gradient in zip(module.parameters(), kept):
                    p.grad = gradient
            optimizer.skip = torch.zeros(())
            optimizer.step()
        return [p.detach() for p in module.parameters()]

    assert all(torch.equal(one, two) for one, two in zip(trained(False), trained(True)))
