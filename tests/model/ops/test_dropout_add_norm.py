"""Dropout, residual sum and LayerNorm in one pass beside torch's operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from model.ops.dropout_add_norm import drop, dropout_add_norm
from model.ops.keyed_dropout import DropoutKey

WIDTH, RATE = 96, 0.1


def both_ways(fused: bool, batch: int, rows: Tensor) -> list[Tensor]:
    """What comes out, and the gradients of all that goes in."""
    torch.manual_seed(0)
    shape = (batch * rows.shape[1], WIDTH)
    norm = nn.LayerNorm(WIDTH, eps=1e-12)
    nn.init.normal_(norm.weight, 1.0, 0.3)
    nn.init.normal_(norm.bias)
    residual = torch.randn(shape, requires_grad=True)
    hidden = torch.randn(shape).bfloat16().requires_grad_()
    keys = DropoutKey(1, 2, torch.arange(5, 5 + batch)).expand(1)[0]
    if fused:
        out = dropout_add_norm(residual, hidden, rows, keys, RATE, norm)
    else:
        out = norm(residual + drop(hidden, rows, keys, RATE))
    out.backward(torch.randn(shape))
    found = [out.detach(), residual.grad, hidden.grad, norm.weight.grad, norm.bias.grad]
    return [tensor for tensor in found if tensor is not None]


@pytest.mark.parametrize("one_for_all", [True, False])
def test_one_pass_is_torchs_several(one_for_all: bool) -> None:
    rows = torch.arange(7, dtype=torch.int32)[None]
    if not one_for_all:  # the last layer's rows are those of each sample's predictions
        rows = torch.stack([rows[0] + sample for sample in range(4)])
    ours, theirs = both_ways(True, 4, rows), both_ways(False, 4, rows)
    assert len(ours) == len(theirs) == 5
    for one, other in zip(ours, theirs):
        assert one.dtype == other.dtype
        rounding = 2**-7 if one.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(one, other, rtol=rounding, atol=1e-5)
    assert torch.equal(ours[2] == 0, theirs[2] == 0)  # the same elements are dropped
    assert not torch.equal(ours[0], theirs[0])  # else this compared one with itself


def test_tokens_with_keys_of_their_own() -> None:
    rows = (torch.arange(100, dtype=torch.int32) % 17)[:, None]
    for one, other in zip(both_ways(True, 100, rows), both_ways(False, 100, rows)):
        rounding = 2**-7 if one.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(one, other, rtol=rounding, atol=2e-5)


def test_threads_do_not_change_a_bit() -> None:
    rows = torch.arange(512, dtype=torch.int32)[None]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = both_ways(True, 16, rows)
        torch.set_num_threads(2)
        shared = both_ways(True, 16, rows)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(alone, shared))
