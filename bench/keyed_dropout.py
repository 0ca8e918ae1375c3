"""Our dropout in a BERT of `transformers`: its places drop the elements that ours drop.

Our masks are a function of seed, step, sample and place (`model.ops.keyed_dropout`), so any implementation can be
given them. Two trainings then differ in nothing but how a step is computed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from model.ops.keyed_dropout import DropoutKey, keep_factors

ATTENTION = "keyed"


class _Place(nn.Module):
    """In place of a `nn.Dropout`; `keys` (batch, 2) are set before each step."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.p = rate
        self.keys: Tensor | None = None

    def factors(self, rows: Tensor, width: int) -> Tensor:
        """What is multiplied by, (batch, num_rows, width)."""
        assert self.keys is not None
        return keep_factors(self.keys, rows, width, self.p)

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, length, width), or pooled (batch, width)."""
        if not self.training or self.p == 0.0:
            return hidden
        length = hidden.shape[1] if hidden.ndim == 3 else 1
        factors = self.factors(torch.arange(length, dtype=torch.int32)[None], hidden.shape[-1])
        return (hidden.float() * factors.view(hidden.shape)).to(hidden.dtype)


class KeyedDropout:
    """Replaces every dropout of a model, which must have been made with `ATTENTION` as its attention."""

    def __init__(self, model: PreTrainedModel) -> None:
        bert = model.bert
        self._places: list[_Place] = []
        owners = [bert.embeddings]
        for layer in bert.encoder.layer:
            owners += [layer.attention.self, layer.attention.output, layer.output]
        if hasattr(model, "dropout"):
            owners.append(model)
        for owner in owners:
            owner.dropout = _Place(owner.dropout.p)
            self._places.append(owner.dropout)

    def at(self, key: DropoutKey) -> None:
        """Take the masks of this step and these samples."""
        for place, keys in zip(self._places, key.expand(len(self._places)), strict=True):
            place.keys = keys


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """As `eager_attention_forward` of `transformers`, but for what is dropped."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    if dropout:
        heads, length, width = weights.shape[1:]
        rows = torch.arange(length, dtype=torch.int32)[None] * heads + torch.arange(heads, dtype=torch.int32)[:, None]
        factors = module.dropout.factors(rows.flatten()[None], width)  # type: ignore[operator, union-attr]
        weights = (weights.float() * factors.view(weights.shape)).to(weights.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, eager_mask)
