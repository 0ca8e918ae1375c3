"""LoRA (Hu et al. 2021, arXiv:2106.09685): low-rank additions to frozen matrices, and their merging into them.

A product x W^T + b becomes x W^T + b + scale (x A^T) B^T, where A (rank, in) starts at random and B (out, rank) at 0.
No gradient of W is ever computed. Queries, keys and values are pieces of one matrix here, each with an addition of its
own.
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
from model.ops.attention_kernels import AttentionMetadata
from model.ops.dropout_add_norm import drop
from model.ops.forward_context import ForwardContext
from model.ops.linear import Linear

_MATRICES = {"attention.query_key_value": PROJECTIONS, "attention.output": ("output",)} | {
    name: (name,) for name in ("widen", "narrow")
}


def _rows_and_keys(keys: Tensor, attention: AttentionMetadata, num_rows: int) -> tuple[Tensor, Tensor]:
    """Rows and keys, as `drop` reads them, of all tokens or, if `num_rows` is the batch size, of each [CLS].

    Args:
        keys: (batch, 2), the key of each sequence.
    """
    if num_rows == len(keys):
        return torch.zeros((1, 1), dtype=torch.int32, device=keys.device), keys
    if attention.indices is None:
        return torch.arange(attention.length, dtype=torch.int32, device=keys.device)[None], keys
    rows = (attention.indices % attention.length).to(torch.int32)[:, None]
    return rows, keys[attention.indices // attention.length]


class LowRank(nn.Module):
    """The additions to some pieces of a matrix, all of `width` rows.

    Args:
        linear: the matrix and its size.
        num_pieces: so many equal ones make the matrix.
        pieces: the numbers of those that are added to, ascending.
        site: number of its dropout layer.
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
        self.down = nn.Parameter(down)
        """(num_pieces * rank, in): A of each piece, below each other."""
        self.up = nn.Parameter(torch.zeros(len(pieces), self.width, self.rank))
        """(num_pieces, width, rank): B of each piece."""
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
        """(out, in): what is added to the matrix itself, fp32; the scale included."""
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
        assert context.attention is not None
        return drop(
            input, *_rows_and_keys(context.dropout_keys[self.site], context.attention, len(input)), self.dropout
        )


def add_lora(model: TaskModel, settings: LoraAdaptation, seed: int) -> None:
    """Freeze the encoder of `model`, and give the target matrices of its layers additions.

    They add 0 at first. Each `down` is keyed by the seed and its name.
    """
    encoder = model.encoder
    encoder.requires_grad_(False)
    first_site, num_adapters = encoder.num_dropouts + 1, 0
    for name, part in _linears(encoder.layers):
        pieces = _MATRICES[name.split(".", 1)[1]]
        chosen = [number for number, piece in enumerate(pieces) if piece in settings.targets]
        if chosen:
            generator = torch.Generator().manual_seed(Key(seed).for_(Domain.ADAPTER, *name.encode()))
            part.addition = LowRank(part, len(pieces), chosen, settings, first_site + num_adapters, generator)
            num_adapters += 1
    if settings.dropout:
        model.num_adapters = num_adapters


def added(model: nn.Module) -> list[tuple[str, LowRank]]:
    """The additions of `model` by the names of their matrices, in their order."""
    return [(name, part.addition) for name, part in _linears(model) if isinstance(part.addition, LowRank)]


def _linears(model: nn.Module) -> list[tuple[str, Linear]]:
    return [(name, part) for name, part in model.named_modules() if isinstance(part, Linear)]


def _with_additions(model: nn.Module) -> list[tuple[Linear, LowRank]]:
    return [(part, part.addition) for _, part in _linears(model) if isinstance(part.addition, LowRank)]


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Add all additions to their matrices for good; what is left is an ordinary model."""
    for linear, addition in _with_additions(model):
        linear.addition = None
        _change(linear, _sum_of(linear, addition))


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """The model as it will be after `merge`; then it is as it was, to the last bit."""
    kept = [(linear, addition, linear.weight.detach().clone()) for linear, addition in _with_additions(model)]
    merge(model)
    try:
        yield
    finally:
        for linear, addition, weight in kept:
            _change(linear, weight)
            linear.addition = addition


def _sum_of(linear: Linear, addition: LowRank) -> Tensor:
    total = linear.weight.detach().clone()
    delta = addition.delta()
    total[: len(delta)] += delta
    return total


@torch.no_grad()
def _change(linear: Linear, weight: Tensor) -> None:
    linear.weight.copy_(weight)
