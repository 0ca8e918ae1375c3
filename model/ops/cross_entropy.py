"""Cross-entropy over a large vocabulary in few passes over the logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.ops.fused_cpu import IGNORED, bits, cross_entropy, cross_entropy_gradient
from model.ops.parallel_for import parallel_for_rows


class LossSums(NamedTuple):
    """Sums over a batch; the caller divides by the global counts."""

    loss: Tensor
    """Scalar fp32: the sum of the cross-entropies (nats)."""
    num_correct: Tensor
    """Scalar int64: predictions whose label has the largest logit (in bf16, ties count)."""


class _CrossEntropySum(torch.autograd.Function):
    """The sum of cross-entropies in three passes forward and one backward.

    The softmax becomes the gradient in place, so backward can run only once.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        counted = labels != IGNORED
        index = labels.clamp(min=0)[:, None]
        probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
        largest = logits.amax(dim=-1).float()
        at_label = logits.gather(1, index)[:, 0].float()
        # log of the sum of exponentials; the largest probability is at least 1 / vocabulary, so its log is finite
        log_sum = largest - probabilities.amax(dim=-1).log()
        loss = torch.where(counted, log_sum - at_label, 0.0).sum()
        num_correct = (counted & (at_label == largest)).sum()
        ctx.save_for_backward(probabilities, index, counted)
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(num_correct)
        return loss, num_correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        slope, index, counted = ctx.saved_tensors
        slope.scatter_add_(1, index, torch.full_like(index, -1.0, dtype=torch.float32))
        return (slope * (grad * counted)[:, None]).to(ctx.dtype), None


class _CrossEntropySumInPlace(torch.autograd.Function):
    """The same for bf16 on a CPU: one pass forward and one backward.

    Backward overwrites the logits with their gradient, so nothing else may read them, and it can run only once.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        log_sums = np.empty(len(logits), dtype=np.float32)
        parts = parallel_for_rows(cross_entropy, logits.shape, bits(logits), labels.numpy(), log_sums)
        ctx.logits, ctx.labels, ctx.log_sums = logits.detach(), labels, log_sums
        loss = torch.tensor(sum(part for part, _ in parts), dtype=torch.float32)
        num_correct = torch.tensor(sum(part for _, part in parts))
        ctx.mark_non_differentiable(num_correct)
        return loss, num_correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        scale = np.float32(grad.item())
        labels = ctx.labels.numpy()
        parallel_for_rows(cross_entropy_gradient, ctx.logits.shape, bits(ctx.logits), labels, ctx.log_sums, scale)
        return ctx.logits, None


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> LossSums:
    """The sum of cross-entropies over rows whose label is not IGNORED, in fp32.

    Args:
        logits: (rows, classes), any floating dtype.
        labels: (rows,) int64, a class or IGNORED.
    """
    in_place = logits.device.type == "cpu" and logits.dtype == torch.bfloat16 and logits.is_contiguous()
    function = _CrossEntropySumInPlace if in_place and not torch.compiler.is_compiling() else _CrossEntropySum
    return LossSums(*function.apply(logits, labels))
