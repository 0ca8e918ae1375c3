"""LoRA (Hu et al. 2021, arXiv:2106.09685): low-rank adapters of frozen matrices, and their merging into them.

A product x W^T + b becomes x W^T + b + scale (x A^T) B^T, where A (rank, in) starts at random and B (out, rank) at 0.
No gradient of W is ever computed. Queries, keys and values are pieces of one matrix, each with its own adapter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.common.rng import Domain, Key
from model.config.finetuning import LoraAdaptation
from model.formats.hf_bert import PROJECTIONS
from model.heads.task_model import TaskModel
from model.ops.dropout_add_norm import drop
from model.ops.forward_context import ForwardContext
from model.ops.linear import Linear

_MATRICES = {
    "attention.query_key_value": PROJECTIONS,
    "attention.output": ("output",),
    "widen": ("widen",),
    "narrow": ("narrow",),
}
"""Targets of the settings that make each matrix of a layer, in order."""


class LowRank(nn.Module):
    """The adapters of some pieces of a matrix, all of `width` rows.

    Args:
        num_pieces: number of equal pieces that make the matrix.
        pieces: numbers of the pieces with an adapter, ascending.
        site: number of the dropout layer.
        generator: draws `down`, as Kaiming's uniform with a = sqrt(5), which the authors' code takes.
    """

    def __init__(
        self,
        linear: Linear,
        num_pieces: int,
        pieces: Sequence[int],
        settings: LoraAdaptation,
        site: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.pieces = tuple(pieces)
        self.rank, self.scale, self.dropout = settings.rank, settings.scale, settings.dropout
        self.width = linear.out_features // num_pieces
        bound = 1 / math.sqrt(linear.in_features)
        down = torch.empty(len(pieces) * self.rank, linear.in_features).uniform_(-bound, bound, generator=generator)
        self.down = nn.Parameter(down)  # (num_pieces * rank, in): A of each piece, below each other
        self.up = nn.Parameter(torch.zeros(len(pieces), self.width, self.rank))  # B of each piece
        self.site = site

    def forward(self, input: Tensor, product: Tensor, first_row: int, context: ForwardContext) -> Tensor:
        """See `model.ops.linear.Adapter`."""
        first, num_pieces = first_row // self.width, product.shape[1] // self.width
        inside = [number for number, piece in enumerate(self.pieces) if first <= piece < first + num_pieces]
        if not inside:
            return product
        down = self.down[inside[0] * self.rank : (inside[-1] + 1) * self.rank]
        low = F.linear(self._dropped(input, context), down)
        return torch.addmm(product, low, self._spread(first, num_pieces, inside).T, alpha=self.scale)

    def delta(self) -> Tensor:
        """(rows up to the last piece, in): the term that merging adds to the matrix, in fp32."""
        num_pieces = self.pieces[-1] + 1
        return self._spread(0, num_pieces, list(range(len(self.pieces)))) @ self.down * self.scale

    def _spread(self, first: int, num_pieces: int, inside: list[int]) -> Tensor:
        """(num_pieces * width, len(inside) * rank): B of each piece in its own rows and columns, 0 elsewhere.

        One product for all pieces costs the zeros and spares passes over the sum.
        """
        columns = len(inside) * self.rank
        blocks = [self.up.new_zeros(self.width, columns) for _ in range(num_pieces)]
        for place, number in enumerate(inside):
            before = place * self.rank
            blocks[self.pieces[number] - first] = F.pad(self.up[number], (before, columns - before - self.rank))
        return blocks[0] if num_pieces == 1 else torch.cat(blocks)

    def _dropped(self, input: Tensor, context: ForwardContext) -> Tensor:
        if context.dropout_keys is None or not self.dropout:
            return input
        attention, keys = context.attention, context.dropout_keys[self.site]
        assert attention is not None
        if len(input) == len(keys):  # the [CLS] of each sequence
            rows = torch.zeros((1, 1), dtype=torch.int32, device=keys.device)
        elif attention.indices is None:
            rows = torch.arange(attention.length, dtype=torch.int32, device=keys.device)[None]
        else:
            rows = (attention.indices % attention.length).to(torch.int32)[:, None]
            keys = keys[attention.indices // attention.length]
        return drop(input, rows, keys, self.dropout)


def add_lora(model: TaskModel, settings: LoraAdaptation, seed: int) -> None:
    """Freeze the encoder of `model`, and give the target matrices of its layers adapters.

    They add 0 at first. Each `down` is keyed by the seed and the name of its matrix.
    """
    encoder = model.encoder
    encoder.requires_grad_(False)
    first_site, num_adapters = encoder.num_dropouts + 1, 0
    for name, part in list(encoder.layers.named_modules()):
        pieces = _MATRICES.get(name.partition(".")[2], ())
        chosen = [number for number, piece in enumerate(pieces) if piece in settings.targets]
        if chosen:
            assert isinstance(part, Linear)
            generator = torch.Generator().manual_seed(Key(seed).for_(Domain.ADAPTER, *name.encode()))
            part.addition = LowRank(part, len(pieces), chosen, settings, first_site + num_adapters, generator)
            num_adapters += 1
    if settings.dropout:
        model.num_adapters = num_adapters


def added(model: nn.Module) -> list[tuple[str, Linear, LowRank]]:
    """The matrices of `model` that have adapters: name, layer and adapter, in the order of the modules."""
    linears = [(name, part) for name, part in model.named_modules() if isinstance(part, Linear)]
    return [(name, part, part.addition) for name, part in linears if isinstance(part.addition, LowRank)]


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Add all adapters to their matrices, and remove them."""
    for _, linear, addition in added(model):
        linear.addition = None
        delta = addition.delta()
        linear.weight[: len(delta)] += delta


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Merge the adapters inside the block; afterwards the model is restored to the last bit."""
    kept = [(linear, addition, linear.weight.detach().clone()) for _, linear, addition in added(model)]
    merge(model)
    try:
        yield
    finally:
        for linear, addition, weight in kept:
            linear.weight.detach().copy_(weight)
            linear.addition = addition
