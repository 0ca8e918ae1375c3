"""Linear and embedding layers that use a bf16 copy of the weights where one is set (`model.optim.master_weights`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.ops.fused_cpu import bits


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
        """The gradient of `weight` as `model.ops.fused_cpu.adamw` wants it: (gradient, places), extra."""
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


class Addition(Protocol):
    """Something that is added to a product; see `model.finetune.lora`."""

    def __call__(self, input: Tensor, product: Tensor, begin: int) -> Tensor:
        """(n, in) and (n, rows), its product with the matrix's rows from `begin` on, to the sum (n, rows)."""
        ...


class Linear(nn.Linear):
    """torch's, by the twin of its matrix where one is in use, and with an addition where it has one."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.addition: Addition | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(n, in) to (n, out)."""
        product = F.linear(input, multiplied(self.weight), self.bias)
        return product if self.addition is None else self.addition(input, product, 0)

    def by_parts(self, inputs: Sequence[Tensor], sizes: list[int]) -> list[Tensor]:
        """Products of each input, (n, in), with the next so many rows of the matrix: (n, size) each."""
        # Split, not sliced: the way back then joins gradients, where slices fill whole ones with zeros and add.
        parts = zip(inputs, multiplied(self.weight).split(sizes), self.bias.split(sizes))
        products = [F.linear(input, weight, shift) for input, weight, shift in parts]
        if self.addition is None:
            return products
        begins = itertools.accumulate(sizes, initial=0)
        return [self.addition(*found) for found in zip(inputs, products, begins)]
