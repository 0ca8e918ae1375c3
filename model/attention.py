"""Multi-head self-attention (Vaswani et al. 2017), with dropout that is a function of its place."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import EncoderConfig
from model.counter import keep_factors
from model.products import Linear, multiplied

HIDDEN = torch.finfo(torch.float32).min
"""Added to the scores of what is not seen; a row that sees nothing stays finite."""


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
        self.query_key_value = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, hidden: Tensor, asking: Tensor | None, rows: Tensor, bias: Tensor | None, keys: Tensor | None
    ) -> Tensor:
        """Attend.

        Args:
            hidden: (batch, length, hidden), what is looked at.
            asking: (batch, num_rows, hidden), the rows of `hidden` that look; None where all do.
            rows: (batch or 1, num_rows) int32, the positions of the rows that look.
            bias: (batch, 1 or num_rows, length), added to the scores of every head, alike for all rows or a line for
                each; None where all is seen.
            keys: (batch, 2), the dropout keys of this layer's probabilities; None for no dropout.

        Returns:
            (batch, num_rows, hidden), after the output projection, before dropout and the residual sum.
        """
        batch, length, width = hidden.shape
        heads, size, num_rows = self.num_heads, self.head_size, rows.shape[1]
        query, key, value = self._project(hidden, asking)
        scale = 1.0 / math.sqrt(size)
        if bias is None:
            scores = torch.bmm(query * scale, key.transpose(1, 2))
        else:
            spread = bias[:, None].expand(batch, heads, num_rows, length).reshape(-1, num_rows, length)
            scores = torch.baddbmm(spread.to(query.dtype), query, key.transpose(1, 2), alpha=scale)
        probabilities = torch.softmax(scores, dim=-1)
        if keys is not None:
            head = torch.arange(heads, dtype=torch.int32, device=rows.device)[:, None]
            kept = keep_factors(keys, (rows[:, None] * heads + head).flatten(1), length, self.dropout)
            probabilities = probabilities * kept.view(probabilities.shape).to(probabilities.dtype)
        mixed = torch.bmm(probabilities, value).view(batch, heads, num_rows, size).transpose(1, 2)
        return self.output(mixed.reshape(batch, num_rows, width))

    def _project(self, hidden: Tensor, asking: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch * heads, num_rows, size), keys and values (batch * heads, length, size)."""
        batch, length, width = hidden.shape
        heads, size = self.num_heads, self.head_size
        if asking is None:
            projected = self.query_key_value(hidden).view(batch, length, 3, heads, size)
            # One copy brings all three into place.
            query, key, value = projected.permute(2, 0, 3, 1, 4).reshape(3, -1, length, size).unbind(0)
            return query, key, value
        # Split, not sliced: the way back then joins two gradients, where slices fill whole ones with zeros and add.
        for_query, for_others = multiplied(self.query_key_value.weight).split([width, 2 * width])
        query_shift, other_shifts = self.query_key_value.bias.split([width, 2 * width])
        asked = F.linear(asking, for_query, query_shift).view(batch, -1, heads, size)
        query = asked.transpose(1, 2).reshape(batch * heads, -1, size)
        seen = F.linear(hidden, for_others, other_shifts).view(batch, length, 2, heads, size)
        key, value = seen.permute(2, 0, 3, 1, 4).reshape(2, batch * heads, length, size).unbind(0)
        return query, key, value
