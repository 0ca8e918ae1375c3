"""The masked-language head with its matrix filled up: nothing is learnt or lost by it."""

from __future__ import annotations

import torch

from model.objectives.masked_lm import aligned
from model.ops.cross_entropy import cross_entropy_sum


def test_rows_that_are_added_change_nothing() -> None:
    torch.manual_seed(0)
    hidden, matrix, bias = torch.randn(40, 16), torch.randn(100, 16), torch.randn(100)
    labels = torch.randint(0, 100, (40,))
    found = []
    for fill in (False, True):
        weights = [tensor.clone().requires_grad_() for tensor in (hidden, matrix, bias)]
        wide = aligned(weights[1], weights[2]) if fill else weights[1:]
        assert len(wide[0]) == len(wide[1]) == (128 if fill else 100)
        sums = cross_entropy_sum(torch.nn.functional.linear(weights[0], *wide), labels)
        sums.loss.backward()
        found.append([sums.loss.detach(), sums.num_correct, *(weight.grad for weight in weights)])
    for plain, filled in zip(*found, strict=True):
        torch.testing.assert_close(filled, plain)


def test_what_is_aligned_stays() -> None:
    matrix, bias = torch.randn(128, 4), torch.randn(128)
    assert aligned(matrix, bias)[0] is matrix and aligned(matrix, bias)[1] is bias
