"""Multi-head self-attention (Vaswani et al. 2017), with dropout that is a function of its place."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from model.config import EncoderConfig
from model.counter import keep_factors

HIDDEN = torch.finfo(torch.float32).min
"""Added to the scores of padding; a row that sees only padding stays finite."""


class SelfAttention(nn.Module):
    """Queries, keys and values by one product; scores and mixing by batched products.

    `scaled_dot_product_attention` is not used: its backward pass is slow on a CPU (DESIGN, section 10), and
    its dropout draws from a generator with state.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, bias: Tensor | None, keys: Tensor | None) -> Tensor:
        """Attend.

        Args:
            hidden: (batch, length, hidden).
            bias: (batch, 1, length), added to the scores of every head and query; None where nothing is
            padding. keys: (batch, 2), the dropout keys of this layer's probabilities; None for no dropout.

        Returns:
            (batch, length, hidden), after the output projection, before dropout and the residual sum.
        """
        batch, length, width = hidden.shape
        heads, size = self.num_heads, self.head_size
        projected = self.query_key_value(hidden).view(batch, length, 3, heads, size)
        # One copy brings all three to (3, batch * heads, length, size).
        query, key, value = projected.permute(2, 0, 3, 1, 4).reshape(3, batch * heads, length, size).unbind(0)
        scale = 1.0 / math.sqrt(size)
        if bias is None:
            scores = torch.bmm(query * scale, key.transpose(1, 2))
        else:
            spread = bias[:, None].expand(batch, heads, length, length).reshape(batch * heads, length, length)
            scores = torch.baddbmm(spread.to(query.dtype), query, key.transpose(1, 2), alpha=scale)
        probabilities = torch.softmax(scores, dim=-1)
        if keys is not None:
            kept = keep_factors(keys, heads * length, length, self.dropout, probabilities.dtype)
            probabilities = probabilities * kept.view(batch * heads, length, length)
        mixed = torch.bmm(probabilities, value).view(batch, heads, length, size).transpose(1, 2)
        return self.output(mixed.reshape(batch, length, width))
