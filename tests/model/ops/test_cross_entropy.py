"""The cross-entropy and its gradient: torch's, in every form that is computed here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from model.ops.cross_entropy import LossSums, cross_entropy_sum
from model.ops.fused_cpu import IGNORED


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def rows(num: int, classes: int, scale: float = 5.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num, classes, generator=generator) * scale
    labels = torch.randint(0, classes, (num,), generator=generator)
    labels[[3, 7]] = IGNORED
    return logits, labels


def test_cross_entropy_is_torchs() -> None:
    logits, labels = rows(30, 90)
    logits.requires_grad_()
    found = cross_entropy_sum(logits, labels)
    (gradient,) = torch.autograd.grad(found.loss * 0.3, logits)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    (expected_gradient,) = torch.autograd.grad(expected * 0.3, logits)
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert found.num_correct == (logits.argmax(1) == labels).sum()


def in_bf16(logits: Tensor, labels: Tensor) -> tuple[LossSums, Tensor]:
    """The sums and the gradient of 0.3 times the loss; the logits' own memory is used up by it."""
    leaf = logits.bfloat16().requires_grad_()
    found = cross_entropy_sum(leaf * 1, labels)
    (gradient,) = torch.autograd.grad(found.loss * 0.3, leaf)
    return found, gradient


@pytest.mark.parametrize("scale", [0.1, 5.0, 60.0])
def test_in_bf16_it_is_that_of_the_rounded_logits(threads: int, scale: float) -> None:
    logits, labels = rows(37, 20_003, scale)
    found, gradient = in_bf16(logits, labels)
    rounded = logits.bfloat16().float().requires_grad_()
    expected = torch.nn.functional.cross_entropy(rounded, labels, reduction="sum", ignore_index=IGNORED)
    (expected_gradient,) = torch.autograd.grad(expected * 0.3, rounded)
    torch.testing.assert_close(found.loss, expected, rtol=1e-5, atol=1e-4)
    # half a step of bf16's eight bits, and what the polynomial for the exponential is off by
    torch.testing.assert_close(gradient.float(), expected_gradient, rtol=2**-8, atol=1e-12)
    assert found.num_correct == (rounded.argmax(1) == labels).sum()
    assert not gradient[[3, 7]].any()


def test_in_bf16_threads_change_nothing() -> None:
    logits, labels = rows(37, 20_003)  # enough to be shared
    before = torch.get_num_threads()
    gradients = []
    for num in (1, 2, 3):
        torch.set_num_threads(num)
        gradients.append(in_bf16(logits, labels)[1])
    torch.set_num_threads(before)
    assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[0], gradients[2])


@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf")])
def test_a_logit_that_is_no_number_spoils_the_loss(bad: float) -> None:
    logits, labels = rows(30, 90)
    logits[5, 60] = bad
    found, gradient = in_bf16(logits, labels)
    assert not torch.isfinite(found.loss) and not torch.isfinite(gradient[5]).all()
