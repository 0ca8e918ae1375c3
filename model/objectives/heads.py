"""The heads of pre-training: masked language model, and the class of a pair."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config.encoder import EncoderConfig
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext
from model.ops.linear import Linear

_OF_NO_PIECE = -1e4  # finite in every precision; logits are some tens at most


class MaskedLanguageHead(nn.Module):
    """Linear, GELU, LayerNorm, then the token embedding as output matrix, and a bias of its own."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, token_embedding: Tensor, context: ForwardContext = DEFAULT_CONTEXT) -> Tensor:
        """(num_positions, hidden) to logits (num_positions, vocab_size), through the tied embedding.

        On a GPU there may be more logits than pieces; those at the end are of none.
        """
        hidden = self.norm(F.gelu(self.transform(hidden, context)))
        matrix = context.weight(token_embedding)
        if hidden.device.type == "cuda":
            return F.linear(hidden, *aligned(matrix, self.bias))
        return F.linear(hidden, matrix, self.bias)


def aligned(matrix: Tensor, bias: Tensor, multiple: int = 64) -> tuple[Tensor, Tensor]:
    """Rows of a product's matrix filled up to a multiple, as a GPU's matrix units want them: BERT's vocabulary is not.

    The logits of the rows that are added are so low that the softmax gives them nothing.
    """
    missing = -len(matrix) % multiple
    if not missing:
        return matrix, bias
    return F.pad(matrix, (0, 0, 0, missing)), F.pad(bias, (0, missing), value=_OF_NO_PIECE)


class NextSentenceHead(nn.Module):
    """Linear on the pooled output; class 0 is IsNext (or in order), class 1 NotNext (or swapped)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """(batch, hidden) to logits (batch, 2), always in fp32.

        It costs nothing, and in bf16 the gradients of this bias and the pooler's, which all but cancel over a batch of
        both classes, would be off by several per cent.
        """
        with torch.autocast(pooled.device.type, enabled=False):
            return self.output(pooled.float())
