"""Products with a matrix of weights: by the matrix, or by its bf16 twin where one is in use (`model.twins`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def multiplied(weight: Tensor) -> Tensor:
    """What products take for `weight`."""
    return weight if torch.compiler.is_compiling() else getattr(weight, "twin", weight)


class Linear(nn.Linear):
    """torch's, by the twin of its matrix where one is in use."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return F.linear(input, multiplied(self.weight), self.bias)
