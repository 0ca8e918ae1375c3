"""Linear and embedding layers that use the bf16 copies of master weights and can carry a low-rank adapter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext


def embedding(ids: Tensor, weight: Tensor, context: ForwardContext) -> Tensor:
    """Rows of `weight` (rows, width) at `ids`, in fp32. The gradient is sparse if `weight` has a bf16 copy."""
    has_copy = context.low_precision is not None and weight in context.low_precision
    return F.embedding(ids, weight, sparse=has_copy)


class Adapter(Protocol):
    """A term added to the product of a linear layer; see `model.finetune.lora`."""

    def __call__(self, input: Tensor, product: Tensor, first_row: int, context: ForwardContext) -> Tensor:
        """Add the term to (n, rows) `product`: `input` (n, in) times the weight's rows from `first_row` on."""
        ...


class Linear(nn.Linear):
    """torch's linear layer, computed with the bf16 copy of its weight if there is one, plus its adapter if any."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.addition: Adapter | None = None

    def forward(self, input: Tensor, context: ForwardContext = DEFAULT_CONTEXT) -> Tensor:
        """(n, in) to (n, out)."""
        product = F.linear(input, context.weight(self.weight), self.bias)
        return product if self.addition is None else self.addition(input, product, 0, context)

    def forward_parts(self, inputs: Sequence[Tensor], sizes: list[int], context: ForwardContext) -> list[Tensor]:
        """Multiply each input (n, in) by its own share of the output rows: (n, size) each."""
        # Split instead of sliced: the backward pass then concatenates gradients instead of adding padded ones.
        parts = zip(inputs, context.weight(self.weight).split(sizes), self.bias.split(sizes))
        products = [F.linear(input, weight, bias) for input, weight, bias in parts]
        if self.addition is None:
            return products
        first_rows = itertools.accumulate(sizes, initial=0)
        return [self.addition(*part, context) for part in zip(inputs, products, first_rows)]
