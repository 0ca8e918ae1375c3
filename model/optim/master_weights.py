"""Master weights for mixed-precision training on a CPU (Micikevicius et al. 2018, arXiv:1710.03740).

The parameters are fp32 master weights. Matrix products use a bf16 copy of each matrix, which the optimizer writes when
it updates the matrix. The gradient of a copy stays bf16 until then, and clipping is a factor in the same pass.
Autocast would cast every matrix and every gradient in each step, half of the memory traffic of a step; the values are
the same. Copies are never saved: they are the rounded weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.ops.forward_context import LowPrecisionCopy
from model.ops.fused_cpu import sum_of_squares
from model.ops.linear import Linear
from model.ops.parallel_for import parallel_for_blocks
from model.optim.optimizers import Optimizer

_RULES = ("adamw", "bert_adamw")  # the others need fp32 gradients


class MasterWeights:
    """The bf16 copies of the matrices of `module`, kept up to date by `optimizer`.

    Args:
        module: on a CPU, not sharded, not compiled, called under autocast to bf16.
        tied: a matrix that is not the weight of a `Linear`: the token embedding if it is also the output matrix.
        optimizer: optimizer of the module's parameters. Matrices that it does not update are frozen: their copies are
            written once and have no gradient.
    """

    def __init__(self, module: nn.Module, tied: Tensor | None, optimizer: Optimizer) -> None:
        by_rule = {p: group["rule"] for group in optimizer.param_groups for p in group["params"]}
        matrices = [part.weight for part in module.modules() if isinstance(part, Linear)]
        self.copies = {
            weight: LowPrecisionCopy(weight)
            for weight in (matrices if tied is None else [tied, *matrices])
            if by_rule.get(weight) in _RULES or not weight.requires_grad
        }
        """By master weight; the `low_precision` of a `ForwardContext`."""
        self._optimizer = optimizer
        for weight in self.copies:
            if weight.requires_grad:
                weight.grad_dtype = None  # allows a bf16 gradient
        optimizer.low_precision = self.copies

    @torch.no_grad()
    def refresh(self) -> None:
        """Update all copies after something other than the optimizer has changed the weights."""
        for weight, copy in self.copies.items():
            copy.values.copy_(weight)

    @torch.no_grad()
    def collect_gradients(self, only_pass: bool) -> None:
        """Move the gradients of the copies to the master weights after a backward pass.

        Args:
            only_pass: the step has one backward pass. The gradients of several passes are summed in fp32.
        """
        for weight, copy in self.copies.items():
            gradient, embedding_grad = copy.values.grad, weight.grad
            copy.values.grad, copy.embedding_grad = None, None
            if gradient is not None and only_pass:
                copy.embedding_grad = None if embedding_grad is None else embedding_grad.coalesce()
                weight.grad = gradient
            elif gradient is not None:
                weight.grad = gradient.float() if embedding_grad is None else gradient.float().add_(embedding_grad)

    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradients of the next step to `max_norm` at most, as torch's clipping does; returns their norm."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        low = [p for p in parameters if p.grad.dtype == torch.bfloat16]
        rest = [p.grad for p in parameters if p.grad.dtype != torch.bfloat16]
        squares = sum(parallel_for_blocks(sum_of_squares, [self.copies[p].gradient_arrays(p) for p in low]))
        norm = (torch.stack(torch._foreach_norm(rest)).double().square().sum() + squares).sqrt().float()
        self._optimizer.gradient_scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        return norm
