"""The encoder of BERT (Devlin et al. 2019, section 3): post-LN transformer layers over summed embeddings."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config.encoder import EncoderConfig
from model.encoder.attention import SelfAttention
from model.ops.attention_kernels import AttentionMetadata
from model.ops.dropout_add_norm import drop, dropout_add_norm
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext
from model.ops.linear import Linear, embedding

DROPOUTS_PER_LAYER = 3  # attention probabilities, attention output, feed-forward output


class EncoderOutput(NamedTuple):
    """Output of the encoder."""

    last_hidden_state: Tensor
    """(batch, length, hidden), or (batch, num_queries, hidden) if only some tokens were asked for."""
    pooler_output: Tensor
    """(batch, hidden): tanh of a linear map of the first position ([CLS])."""


class Embeddings(nn.Module):
    """The sum of token, segment and position embeddings, then LayerNorm and dropout."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor, context: ForwardContext
    ) -> Tensor:
        """(num_tokens,) ids, token types and positions to (num_tokens, hidden)."""
        others = self.segment(token_type_ids) + self.position(position_ids)
        hidden = self.norm(embedding(input_ids, self.token.weight, context) + others)
        return drop(hidden, *context.dropout_at(0), self.dropout)


class Layer(nn.Module):
    """Attention and feed-forward, each followed by dropout, the residual sum and LayerNorm."""

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout_prob
        self.site = 1 + DROPOUTS_PER_LAYER * index  # its first dropout layer
        self.attention = SelfAttention(config, self.site)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.widen = Linear(config.hidden_size, config.intermediate_size)
        self.narrow = Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, context: ForwardContext) -> Tensor:
        """(num_tokens, hidden) to (num_tokens or batch * num_queries, hidden)."""
        attended = self.attention(hidden, context)
        if context.attention is not None and context.attention.query_indices is not None:
            hidden = hidden.index_select(0, context.attention.query_indices.flatten())
        hidden = dropout_add_norm(
            hidden, attended, *context.dropout_at(self.site + 1), self.dropout, self.attention_norm
        )
        # GELU by erf, not its tanh approximation
        transformed = self.narrow(F.gelu(self.widen(hidden, context)), context)
        return dropout_add_norm(hidden, transformed, *context.dropout_at(self.site + 2), self.dropout, self.output_norm)


class Encoder(nn.Module):
    """BERT without its pre-training heads."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

    @property
    def has_pooler(self) -> bool:
        """False for an encoder that was saved without a pooler: its pooler's weights are zeros."""
        return bool(self.pooler.weight.any())

    @property
    def num_dropouts(self) -> int:
        """Number of dropout layers: one in the embeddings, and three in each layer."""
        return 1 + DROPOUTS_PER_LAYER * self.config.num_hidden_layers

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        context: ForwardContext = DEFAULT_CONTEXT,
    ) -> EncoderOutput:
        """Encode a batch.

        All layers compute on (num_tokens, hidden). Padding may be left out before the embeddings, and the last layer
        may be evaluated at a few tokens only (`AttentionMetadata.indices` and `query_indices`); values and dropout are
        those of the full computation.

        Args:
            input_ids: (batch, length), integers.
            token_type_ids: (batch, length), 0 or 1; 0 everywhere if None.
            attention_mask: (batch, length), 1 (or True) for tokens and 0 for padding; None for no padding. Not read if
                the context has attention metadata.
            position_ids: (batch, length), index of each token's position embedding; 0, 1, 2, ... if None.
            context: attention kernel and metadata, dropout keys, low-precision copies of the weights.
        """
        batch, length = input_ids.shape
        assert length <= self.config.max_position_embeddings, "sequence longer than the position table"
        mask = None if attention_mask is None else attention_mask.bool()
        attention = AttentionMetadata(batch, length, mask) if context.attention is None else context.attention
        assert attention.indices is None or attention.query_indices is not None, "unpadded batches need query_indices"
        context = context.start(attention, self.training, input_ids.device)
        position = attention.positions(input_ids.device) % length
        positions = position if position_ids is None else attention.at_tokens(position_ids)
        token_types = torch.zeros_like(position) if token_type_ids is None else attention.at_tokens(token_type_ids)
        hidden = self.embeddings(attention.at_tokens(input_ids), token_types, positions, context)
        for index, layer in enumerate(self.layers):
            if index == len(self.layers) - 1:
                context = context.at_queries(attention.query_indices)
            hidden = layer(hidden, context)
        hidden = hidden.view(batch, -1, hidden.shape[1])
        with torch.autocast(input_ids.device.type, enabled=False):  # one row per sequence: fp32 costs nothing
            pooled = torch.tanh(self.pooler(hidden[:, 0].float()))
        return EncoderOutput(hidden, pooled)
