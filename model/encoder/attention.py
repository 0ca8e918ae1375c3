"""Multi-head self-attention (Vaswani et al. 2017, section 3.2.2)."""

from __future__ import annotations

from torch import Tensor, nn

from model.config.encoder import EncoderConfig
from model.ops.attention_kernels import AttentionMetadata, batched_attention, flash_attention, flex_kernel, pad
from model.ops.forward_context import ForwardContext
from model.ops.linear import Linear


class SelfAttention(nn.Module):
    """Joint projection to queries, keys and values, an attention kernel, and the output projection."""

    def __init__(self, config: EncoderConfig, site: int) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.site = site  # number of its dropout layer
        self.query_key_value = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, context: ForwardContext) -> Tensor:
        """(num_tokens, hidden) to (num_tokens or batch * num_queries, hidden), before dropout and the residual sum."""
        attention = context.attention
        assert attention is not None
        keys = None if context.dropout_keys is None or not self.dropout else context.dropout_keys[self.site]
        if context.kernel == "batched":
            query, key, value = self._project(hidden, attention, context)
            mixed = batched_attention(query, key, value, self.num_heads, attention, keys, self.dropout)
            return self.output(mixed, context)
        projected = self.query_key_value(hidden, context).view(-1, 3, self.num_heads, self.head_size)
        query, key, value = projected.unbind(1)
        if context.kernel == "flash":
            assert not self.dropout, "flash attention has no dropout"
            mixed = flash_attention(query, key, value, attention)
        else:
            mixed = flex_kernel(query, key, value, attention, keys, self.dropout)
        mixed = mixed.reshape(len(hidden), -1)
        queries = attention.query_indices
        return self.output(mixed if queries is None else mixed.index_select(0, queries.flatten()), context)

    def _project(
        self, hidden: Tensor, attention: AttentionMetadata, context: ForwardContext
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch * heads, num_queries or length, size), keys and values (batch * heads, length, size)."""
        batch, length, width = attention.batch, attention.length, hidden.shape[1]
        heads, size = self.num_heads, self.head_size
        if attention.query_indices is None:
            projected = pad(self.query_key_value(hidden, context), attention).view(batch, length, 3, heads, size)
            # One copy transposes all three.
            query, key, value = projected.permute(2, 0, 3, 1, 4).reshape(3, -1, length, size).unbind(0)
            return query, key, value
        at_queries = hidden.index_select(0, attention.query_indices.flatten())
        query, pair = self.query_key_value.forward_parts((at_queries, hidden), [width, 2 * width], context)
        query = query.view(batch, -1, heads, size).transpose(1, 2).reshape(batch * heads, -1, size)
        pair = pad(pair, attention).view(batch, length, 2, heads, size)
        key, value = pair.permute(2, 0, 3, 1, 4).reshape(2, batch * heads, length, size).unbind(0)
        return query, key, value
