"""bf16 twins of the matrices, for training on a CPU: one pass of the optimiser does what took autocast several.

Autocast casts each matrix to bf16 in every step and each gradient back to fp32, and clipping rewrites that: half of the
memory traffic of a step. Here products take a twin of the matrix, which the optimiser writes when it updates the
matrix itself; the twin's gradient stays bf16 until then, and clipping is a factor in the same pass. The values are
those of autocast. Twins are never saved: they are the matrices, rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from model.ops.fused_cpu import sum_of_squares
from model.ops.linear import Linear, Twin
from model.ops.parallel_for import over_pieces
from model.optim.optimizers import Optimizer

_RULES = ("adamw", "bert_adamw")  # the others want fp32 gradients


class Twins:
    """Of all matrices of `module` that products in bf16 take, kept up by `optimizer`.

    Args:
        module: on a CPU, whole, not compiled, called under autocast to bf16.
        tied: a matrix beside those of its `Linear`s: the token embedding where it is the output matrix, too.
        optimizer: of the module's parameters. A matrix that it does not move is frozen: its twin is never written
            again, and it has no gradient.
    """

    def __init__(self, module: nn.Module, tied: Tensor | None, optimizer: Optimizer) -> None:
        by_rule = {p: group["rule"] for group in optimizer.param_groups for p in group["params"]}
        matrices = [part.weight for part in module.modules() if isinstance(part, Linear)]
        self._twins = {
            weight: Twin(weight)
            for weight in (matrices if tied is None else [tied, *matrices])
            if by_rule.get(weight) in _RULES or not weight.requires_grad
        }
        self._optimizer = optimizer
        for weight in self._twins:
            if weight.requires_grad:
                weight.grad_dtype = None  # bf16, too
        optimizer.twins = self._twins

    @torch.no_grad()
    def refresh(self) -> None:
        """After the matrices were changed by others than the optimiser."""
        for weight, twin in self._twins.items():
            twin.rounded.copy_(weight)

    @contextmanager
    def in_use(self, is_only: bool) -> Iterator[None]:
        """Let products take the twins, forward and backward; their gradients are then added to the matrices'.

        Args:
            is_only: whether this is the step's only pass. Of several, the gradients are summed in fp32.
        """
        for weight, twin in self._twins.items():
            weight.twin = twin  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for weight in self._twins:
                del weight.twin  # type: ignore[attr-defined]
        self._collect(is_only)

    @torch.no_grad()
    def _collect(self, is_only: bool) -> None:
        for weight, twin in self._twins.items():
            gradient, looked_up = twin.rounded.grad, weight.grad
            twin.rounded.grad, twin.looked_up = None, None
            if gradient is not None and is_only:
                twin.looked_up = None if looked_up is None else looked_up.coalesce()
                weight.grad = gradient
            elif gradient is not None:
                weight.grad = gradient.float() if looked_up is None else gradient.float().add_(looked_up)

    def clip(self, max_norm: float) -> Tensor:
        """Have the next step's gradients scaled to `max_norm` at most, as torch's clipping does; gives their norm."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        halves = [p for p in parameters if p.grad.dtype == torch.bfloat16]
        rest = [p.grad for p in parameters if p.grad.dtype != torch.bfloat16]
        squares = sum(over_pieces(sum_of_squares, [self._twins[p].gradient_arrays(p) for p in halves]))
        norm = (torch.stack(torch._foreach_norm(rest)).double().square().sum() + squares).sqrt().float()
        self._optimizer.factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        return norm
