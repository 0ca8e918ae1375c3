"""Optimizers (BERT's AdamW without bias correction, torch's, LAMB, Muon inside the layers) and master weights.

All optimizers are one class with a rule per parameter group. Bad steps are skipped without synchronizing with the host:
`skip` is a tensor on the device, and if it is not 0, neither weights nor moments change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.ops.forward_context import LowPrecisionCopy
from model.ops.fused_cpu import adamw, bits, sum_of_squares
from model.ops.linear import Linear
from model.ops.parallel_for import parallel_for_blocks
from model.optim.sharding import as_parts, local, own_part, whole

_SETTLED = 1e8  # 1 - beta ** 1e8 is 1 in fp32 for every beta below 0.9999998
# Newton and Schulz's iteration as Muon tunes it (Jordan et al. 2024, github.com/KellerJordan/Muon): a quintic, steep
# at 0, that brings all singular values to between 0.7 and 1.2 in five turns.
_QUINTIC, _TURNS = (3.4445, -4.7750, 2.0315), 5
_MUON_MOMENTUM = 0.95
# Root mean square of an update's entries, about AdamW's, so that both take one rate (Liu et al. 2025,
# arXiv:2502.16982).
_MUON_RMS = 0.2
_LEAST_STEPS = 20  # before a norm can be called a spike: the first ones are large
_STEPS_AVERAGED = 50  # that the typical norm looks back over, about
_LOW_PRECISION_RULES = ("adamw", "bert_adamw")  # the others need fp32 gradients


class Optimizer(torch.optim.Optimizer):
    """Steps of `kind` over groups of parameters.

    Each group holds lr, betas, eps, weight_decay and rule ("adamw", "bert_adamw", "lamb" or "muon"). Weight decay is
    decoupled: the learning rate times weight_decay times the weight.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__(groups, defaults)
        self.skip: Tensor | None = None
        """() fp32, or None: if it is not 0, the next step changes nothing."""
        self.low_precision: dict[Tensor, LowPrecisionCopy] = {}
        """bf16 copies of some parameters, which steps update, too; see `MasterWeights`."""
        self.gradient_scale: Tensor | None = None
        """() fp32, factor of the next step's gradients; set if there are bf16 copies."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, after calling `closure`; return what that returned."""
        found = None
        if closure is not None:
            with torch.enable_grad():
                found = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                for p in parameters:
                    if not self.state[p]:
                        self.state[p].update(_first_state(p, group["rule"]))
                halves = [p for p in parameters if p.grad is not None and p.grad.dtype == torch.bfloat16]
                if halves:
                    self._adamw_low_precision(group, halves)
                    parameters = [p for p in parameters if p.grad is not None and p.grad.dtype != torch.bfloat16]
                if not parameters:  # all of them have copies
                    continue
                if self.gradient_scale is not None:
                    torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], self.gradient_scale)
                _RULES[group["rule"]](self, group, parameters)
                for p in parameters:
                    if p in self.low_precision:
                        self.low_precision[p].values.copy_(p)
        return found

    def _adamw_low_precision(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """One pass of a fused kernel over parameters with bf16 gradients on a CPU."""
        assert self.gradient_scale is not None
        if self.skip is not None and self.skip.item():
            return
        (beta1, beta2), rate, deviation = group["betas"], group["lr"], 1.0
        if group["rule"] == "adamw":
            for p in parameters:
                self.state[p]["count"] += 1
            count = self.state[parameters[0]]["count"].item()
            rate, deviation = rate / (1 - beta1**count), (1 - beta2**count) ** 0.5
        matrices = []
        for p in parameters:
            copy, state = self.low_precision[p], self.state[p]
            (gradient, places), extra = copy.gradient_arrays(p)
            moments = state["exp_avg"].numpy(), state["exp_avg_sq"].numpy()
            matrices.append(((gradient, places, p.detach().numpy(), *moments, bits(copy.values)), extra))
        kept = 1 - group["lr"] * group["weight_decay"]
        numbers = (self.gradient_scale.item(), 1 - beta1, beta2, 1 - beta2, kept, rate, 1 / deviation, group["eps"])
        parallel_for_blocks(adamw, matrices, tuple(map(np.float32, numbers)))

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """One fused pass; without bias correction the counts are so large that the corrections are 1."""
        states = [{name: local(value) for name, value in self.state[p].items()} for p in parameters]
        if group["rule"] == "adamw":
            counts = [state["count"] for state in states]
            torch._foreach_add_(counts, 1 if self.skip is None else 1 - self.skip)
        else:
            counts = [torch.full((), _SETTLED, device=p.device) for p in parameters]
        torch._fused_adamw_(
            [local(p) for p in parameters],
            [local(p.grad) for p in parameters if p.grad is not None],
            [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states],
            [],
            counts,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=self.skip,
        )

    def _lamb(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """You et al. 2020 (arXiv:1904.00962), algorithm 2: Adam's update, scaled to each matrix's own norm."""
        (beta1, beta2), rate = group["betas"], group["lr"]
        for p in parameters:
            own, state, go = local(p), self.state[p], self._go(p)
            first, second = local(state["exp_avg"]), local(state["exp_avg_sq"])
            state["count"] += go
            gradient = torch.where(go > 0, local(p.grad), 0.0)  # type: ignore[arg-type]
            first.lerp_(gradient, (1 - beta1) * go)
            second.lerp_(gradient.square(), (1 - beta2) * go)
            count = state["count"].clamp(min=1)
            update = first / (1 - beta1**count) / ((second / (1 - beta2**count)).sqrt() + group["eps"])
            if group["weight_decay"]:
                update += group["weight_decay"] * own
                size, length = whole(as_parts(own, p).norm()), whole(as_parts(update, p).norm())
                update *= torch.where((size > 0) & (length > 0), size / length, 1.0)
            own.sub_(update * (rate * go))

    def _muon(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Orthogonalized momentum: the update has the same size in every direction of a matrix."""
        for p in parameters:
            own, go = local(p), self._go(p)
            momentum = local(self.state[p]["momentum"])
            gradient = torch.where(go > 0, local(p.grad), 0.0)  # type: ignore[arg-type]
            momentum.lerp_(gradient, (1 - _MUON_MOMENTUM) * go)
            parts = whole(as_parts(gradient.lerp(momentum, _MUON_MOMENTUM), p)).chunk(group["parts"])
            size = group["lr"] * _MUON_RMS * max(parts[0].shape) ** 0.5
            own.mul_(1 - group["lr"] * group["weight_decay"] * go)
            update = own_part(torch.cat([orthogonal(part) for part in parts]).to(p.dtype), p)
            own.sub_(local(update) * (size * go))

    def _go(self, p: Tensor) -> Tensor:
        """() 1, or 0 if this step is skipped."""
        return torch.ones((), device=p.device) if self.skip is None else 1 - self.skip


_RULES: dict[str, Callable[[Optimizer, dict[str, Any], list[Tensor]], None]] = {
    "adamw": Optimizer._adamw,
    "bert_adamw": Optimizer._adamw,
    "lamb": Optimizer._lamb,
    "muon": Optimizer._muon,
}


def _first_state(p: Tensor, rule: str) -> dict[str, Tensor]:
    if rule == "muon":
        return {"momentum": torch.zeros_like(p)}
    state = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return state if rule == "bert_adamw" else state | {"count": torch.zeros((), device=p.device)}


def orthogonal(matrix: Tensor) -> Tensor:
    """Approximately U V^T of the (rows, columns) matrix U S V^T, in bf16."""
    wide = matrix.bfloat16() if matrix.shape[0] <= matrix.shape[1] else matrix.bfloat16().T
    wide = wide / wide.norm().clamp(min=1e-7)
    a, b, c = _QUINTIC
    for _ in range(_TURNS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


def make_optimizer(
    model: nn.Module,
    kind: str = "bert_adamw",
    learning_rate: float = 0.0,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    rate_factors: Mapping[str, float] | None = None,
) -> Optimizer:
    """The optimizer of all parameters of `model` that are not frozen.

    Weight decay applies to matrices and embeddings, not to biases and LayerNorm. Muon updates the matrices inside the
    layers; all other parameters use torch's AdamW.

    Args:
        rate_factors: factor of the learning rate for every parameter name. Groups hold it as "rate_factor", for the
            caller that sets the rates. AdamW only.
    """
    defaults = {"lr": learning_rate, "betas": (betas[0], betas[1]), "eps": eps}
    if rate_factors is not None:
        assert kind != "muon", "rates by layer are for AdamW"
        return Optimizer(_groups_by_rate(model, kind, weight_decay, rate_factors), defaults)
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    inner = {name: p for name, p in named if kind == "muon" and p.ndim == 2 and ".layers." in f".{name}"}
    joined = [p for name, p in inner.items() if name.endswith("query_key_value.weight")]  # three matrices in one
    single = [p for name, p in inner.items() if not name.endswith("query_key_value.weight")]
    rest = [p for name, p in named if name not in inner]
    rule = "adamw" if kind == "muon" else kind
    groups: list[dict[str, Any]] = [
        {"params": joined, "weight_decay": weight_decay, "rule": "muon", "parts": 3},
        {"params": single, "weight_decay": weight_decay, "rule": "muon", "parts": 1},
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": weight_decay, "rule": rule},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0, "rule": rule},
    ]
    return Optimizer([group for group in groups if group["params"]], defaults)


def _groups_by_rate(
    model: nn.Module, rule: str, weight_decay: float, rate_factors: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Groups of equal factor and decay, highest rate first."""
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            groups.setdefault((-rate_factors[name], weight_decay if p.ndim >= 2 else 0.0), []).append(p)
    return [
        {"params": parameters, "weight_decay": decay, "rule": rule, "rate_factor": -factor}
        for (factor, decay), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]


class MasterWeights:
    """The bf16 copies of the matrices of `module`, kept up to date by `optimizer`, for training on a CPU.

    The parameters are fp32 master weights (Micikevicius et al. 2018, arXiv:1710.03740). Matrix products use a bf16 copy
    of each matrix, which the optimizer writes when it updates the matrix. The gradient of a copy stays bf16 until then,
    and clipping is a factor in the same pass. Autocast would cast every matrix and every gradient in each step, half of
    the memory traffic of a step; the values are the same. Copies are never saved: they are the rounded weights.

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
            if by_rule.get(weight) in _LOW_PRECISION_RULES or not weight.requires_grad
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


class SkipStep:
    """Decides for each gradient norm whether the step is skipped: if it is not finite, or a spike.

    The decision is made on the device, so that no step waits for the host.

    Args:
        spike_factor: norms above this multiple of the typical norm are spikes; None accepts all finite norms.
        device: device of the norms.
    """

    def __init__(self, spike_factor: float | None, device: torch.device) -> None:
        self._factor = spike_factor
        self._typical = torch.zeros((), dtype=torch.float64, device=device)  # a running mean of the norms taken
        self._taken = torch.zeros((), dtype=torch.float64, device=device)

    def judge(self, norm: Tensor) -> Tensor:
        """() fp32: 1 if the step with this gradient norm (before clipping) has to be skipped, else 0."""
        good = norm.isfinite()
        if self._factor is not None:
            good = good & ((self._taken < _LEAST_STEPS) | (norm <= self._factor * self._typical))
        share = 1 / (self._taken + 1).clamp(max=_STEPS_AVERAGED)
        self._typical = torch.where(good, self._typical + (norm.double() - self._typical) * share, self._typical)
        self._taken = self._taken + good
        return (~good).float()

    def state(self) -> dict[str, float]:
        """State for a checkpoint (exact)."""
        return {"typical": self._typical.item(), "taken": self._taken.item()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore the result of `state`."""
        self._typical.fill_(state["typical"])
        self._taken.fill_(state["taken"])
