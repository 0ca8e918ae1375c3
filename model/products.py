"""Products with a matrix of weights, and look-ups in one: by its bf16 twin where one is in use (`model.twins`)."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.kernels import bits


class Twin:
    """A matrix's values in bf16, and what its gradient is made of.

    Args:
        weight: (rows, width) fp32, on a CPU.
    """

    def __init__(self, weight: Tensor) -> None:
        self.rounded = weight.detach().bfloat16().requires_grad_(weight.requires_grad)
        """(rows, width) bf16: what products take."""
        self.looked_up: Tensor | None = None
        """(rows, width) fp32, sparse and coalesced: the gradient of look-ups, on top of a gradient in bf16."""
        self._nowhere = np.full(len(weight), -1, dtype=np.int32)
        self._nothing = np.empty((0, weight.shape[1]), dtype=np.float32)

    def gradient_arrays(self, weight: Tensor) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """The gradient of `weight` as `model.kernels.adamw` wants it: (gradient, places), extra."""
        assert weight.grad is not None
        if self.looked_up is None:
            return (bits(weight.grad), self._nowhere), self._nothing
        rows = self.looked_up.indices()[0].numpy()
        places = self._nowhere.copy()
        places[rows] = np.arange(len(rows), dtype=np.int32)
        return (bits(weight.grad), places), self.looked_up.values().numpy()


def _twin(weight: Tensor) -> Twin | None:
    return None if torch.compiler.is_compiling() else getattr(weight, "twin", None)


def multiplied(weight: Tensor) -> Tensor:
    """What products take for `weight`."""
    twin = _twin(weight)
    return weight if twin is None else twin.rounded


def look_up(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of `weight` (rows, width) at `ids`, as they are; beside a twin the gradient is sparse."""
    return F.embedding(ids, weight, sparse=_twin(weight) is not None)


class Linear(nn.Linear):
    """torch's, by the twin of its matrix where one is in use."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return F.linear(input, multiplied(self.weight), self.bias)
