"""Dropout, residual sum and LayerNorm, which follow attention and feed-forward."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.ops.fused_cpu import bits, drop_add_norm, drop_add_norm_gradient
from model.ops.keyed_dropout import dropout_arrays, keep_factors
from model.ops.parallel_for import parallel_for_rows


def drop(hidden: Tensor, rows: Tensor, keys: Tensor | None, rate: float) -> Tensor:
    """Dropout of (num_tokens, width) by the keys of one dropout layer; without keys, nothing is dropped.

    Args:
        hidden: the same number of rows for each key, those of the first key first.
        rows: (num_keys or 1, rows per key) int32, position of each row in its sample.
        keys: (num_keys, 2).
    """
    if keys is None or rate == 0.0:
        return hidden
    return hidden * keep_factors(keys, rows, hidden.shape[1], rate).view(hidden.shape)


_ROWS_SUMMED = 32
"""Rows whose gradients of scale and shift one thread sums."""


class _DropAddNorm(torch.autograd.Function):
    """One pass forward and one backward."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, residual: Tensor, hidden: Tensor, scale: Tensor, shift: Tensor, eps: float, dropout: tuple[Any, ...]
    ) -> Tensor:
        shape = len(dropout[0]), -1, residual.shape[-1]
        hidden, residual = hidden.view(shape), residual.view(shape)
        sums, normed = torch.empty_like(residual), torch.empty_like(residual)
        moments = np.empty((*residual.shape[:2], 2), dtype=np.float32)
        given = bits(hidden), residual.numpy(), scale.numpy(), shift.numpy(), np.float32(eps)
        parallel_for_rows(drop_add_norm, residual.shape, given, (sums.numpy(), normed.numpy(), moments), dropout)
        ctx.sums, ctx.moments, ctx.scale, ctx.dropout = sums, moments, scale, dropout
        return normed.view(-1, shape[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad = grad.contiguous().view(ctx.sums.shape)
        num_keys, num_rows, width = grad.shape
        hidden, residual = torch.empty_like(grad, dtype=torch.bfloat16), torch.empty_like(grad)
        together = max(1, _ROWS_SUMMED // num_rows)
        num_sums = -(-num_keys // together)
        scale, shift = torch.zeros(num_sums, width), torch.zeros(num_sums, width)
        given = grad.numpy(), ctx.sums.numpy(), ctx.moments, ctx.scale.numpy()
        found = bits(hidden), residual.numpy(), scale.numpy(), shift.numpy()
        parallel_for_rows(drop_add_norm_gradient, (num_sums, grad.numel()), together, given, found, ctx.dropout)
        # Summed in a fixed order, independent of the threads.
        residual, hidden = residual.view(-1, width), hidden.view(-1, width)
        return residual, hidden, scale.sum(0), shift.sum(0), None, None


def dropout_add_norm(
    residual: Tensor, hidden: Tensor, rows: Tensor, keys: Tensor | None, rate: float, norm: nn.LayerNorm
) -> Tensor:
    """LayerNorm(residual + dropout(hidden)), both (num_tokens, width); see `drop`.

    In bf16 on a CPU this runs fused kernels (`model.ops.fused_cpu`), which are tested against torch's operations.
    """
    can_fuse = (
        hidden.device.type == "cpu"
        and (hidden.dtype, residual.dtype) == (torch.bfloat16, torch.float32)
        and not torch.compiler.is_compiling()
        and hidden.is_contiguous()
        and residual.is_contiguous()
    )
    if keys is None or rate == 0.0 or not can_fuse:
        return norm(residual + drop(hidden, rows, keys, rate))  # type: ignore[no-any-return]
    dropout = dropout_arrays(keys, rows, rate)
    return _DropAddNorm.apply(residual, hidden, norm.weight, norm.bias, norm.eps, dropout)  # type: ignore[no-any-return]
