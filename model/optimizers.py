"""AdamW as BERT's release has it (no bias correction), and as torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: matrices and embeddings decay; biases and LayerNorm (vectors) do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


class BertAdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay and without bias correction (the released BERT's
    AdamWeightDecayOptimizer).

    The update is m / (sqrt(v) + eps) + weight_decay * w, times the learning rate. One fused pass over each
    parameter where torch has one: torch's fused AdamW is given a step count so large that its bias
    corrections are 1.
    """

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        defaults = {"lr": learning_rate, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "a closure is not supported"
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for p in parameters:
                if not self.state[p]:
                    self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            if not parameters:
                continue
            beta1, beta2 = group["betas"]
            torch._fused_adamw_(
                parameters,
                [p.grad for p in parameters],
                [self.state[p]["exp_avg"] for p in parameters],
                [self.state[p]["exp_avg_sq"] for p in parameters],
                [],
                [torch.full((), _SETTLED, device=p.device) for p in parameters],
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )


_SETTLED = 1e8  # 1 - beta ** 1e8 is 1 in fp32 for every beta below 0.9999998


def bert_adamw(
    model: nn.Module,
    learning_rate: float,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    bias_correction: bool = False,
) -> torch.optim.Optimizer:
    """AdamW over all parameters of `model`: BERT's, or with `bias_correction` torch's (for fine-tuning)."""
    groups = decay_groups(model, weight_decay)
    if bias_correction:
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(betas[0], betas[1]), eps=eps, fused=True)
    return BertAdamW(groups, learning_rate, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay)
