"""The encoder of BERT (Devlin et al. 2019, section 3): post-LN transformer layers over summed embeddings."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import HIDDEN, SelfAttention
from model.config import EncoderConfig
from model.counter import DropoutKey
from model.products import Linear, look_up
from model.residual import add_and_norm, drop

SITES_PER_LAYER = 3  # attention probabilities, attention output, feed-forward output


class EncoderOutput(NamedTuple):
    """What the encoder gives."""

    last_hidden_state: Tensor
    """(batch, length, hidden), or (batch, num_positions, hidden) where positions were asked for."""
    pooler_output: Tensor
    """(batch, hidden): tanh of a linear map of the first position ([CLS])."""


def rows_at(hidden: Tensor, positions: Tensor) -> Tensor:
    """(batch, length, width) at (batch, num_rows) int64, as (batch, num_rows, width)."""
    batch, length, width = hidden.shape
    first = torch.arange(0, batch * length, length, device=positions.device)[:, None]
    # One index for whole rows: with gather, the compiler of torch 2.13 makes code for the CPU that crashes.
    return hidden.reshape(-1, width).index_select(0, (positions + first).flatten()).view(batch, -1, width)


class Embeddings(nn.Module):
    """The sum of token, segment and position embeddings, then LayerNorm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """(batch, length) ids, segments and positions (0, 1, 2, ... where None) to (batch, length, hidden)."""
        at = self.position.weight[: input_ids.shape[1]] if position_ids is None else self.position(position_ids)
        places = self.segment(token_type_ids) + at
        return self.norm(look_up(input_ids, self.token.weight) + places)


class Layer(nn.Module):
    """Attention and feed-forward, each followed by dropout, the residual sum and LayerNorm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout_prob
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.widen = Linear(config.hidden_size, config.intermediate_size)
        self.narrow = Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, hidden: Tensor, positions: Tensor | None, rows: Tensor, bias: Tensor | None, keys: Tensor | None
    ) -> Tensor:
        """One layer.

        Args:
            hidden: (batch, length, hidden).
            positions: (batch, num_rows) int64, the positions to compute; None for all of them.
            rows: (batch or 1, num_rows) int32, the same positions for dropout.
            bias: (batch, 1 or length, length), added to the attention scores, or None.
            keys: (3, batch, 2), the layer's dropout keys, or None.

        Returns:
            (batch, num_rows, hidden).
        """
        at_probabilities, at_attention, at_output = (None, None, None) if keys is None else keys.unbind(0)
        asking = None
        if positions is not None:
            asking = rows_at(hidden, positions)
            if bias is not None and bias.shape[1] > 1:
                bias = rows_at(bias, positions)
        if self.attention.dropout == 0.0:
            at_probabilities = None
        attended = self.attention(hidden, asking, rows, bias, at_probabilities)
        residual = hidden if asking is None else asking
        hidden = add_and_norm(residual, attended, rows, at_attention, self.dropout, self.attention_norm)
        transformed = self.narrow(F.gelu(self.widen(hidden)))  # GELU by erf, not its tanh approximation
        return add_and_norm(hidden, transformed, rows, at_output, self.dropout, self.output_norm)


class Encoder(nn.Module):
    """BERT without its pre-training heads."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

    @property
    def num_sites(self) -> int:
        """Places that drop: the embeddings, and three in each layer."""
        return 1 + SITES_PER_LAYER * self.config.num_hidden_layers

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        dropout: DropoutKey | Tensor | None = None,
        positions: Tensor | None = None,
    ) -> EncoderOutput:
        """Encode.

        Args:
            input_ids: (batch, length), integers.
            token_type_ids: (batch, length), segment 0 or 1; all 0 where None.
            attention_mask: (batch, length), 1 (or True) for tokens and 0 for padding, or (batch, length, length), what
                each position sees; None where all see all.
            position_ids: (batch, length), the position that each token is embedded with; 0, 1, 2, ... where None.
            dropout: the key of this batch's dropout, or its sites already computed (num_sites, batch, 2); it counts
                only in training mode, and without one nothing is dropped.
            positions: (batch, num_positions) int64, the positions whose hidden states are wanted, [CLS] first.
                The last layer then computes no others: with two layers a third of the work is saved. The values
                (and the dropout) are those of the full computation.
        """
        length = input_ids.shape[1]
        assert length <= self.config.max_position_embeddings, "sequence longer than the position table"
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        bias = None
        if attention_mask is not None:
            seen = attention_mask.bool()
            bias = (~(seen[:, None, :] if seen.ndim == 2 else seen)).to(torch.float32) * HIDDEN
        sites = dropout.sites(self.num_sites) if isinstance(dropout, DropoutKey) else dropout
        if not self.training:
            sites = None
        every_row = torch.arange(length, dtype=torch.int32, device=input_ids.device)[None]
        hidden = self.embeddings(input_ids, token_type_ids, position_ids)
        hidden = drop(hidden, every_row, None if sites is None else sites[0], self.config.hidden_dropout_prob)
        for index, layer in enumerate(self.layers):
            first = 1 + SITES_PER_LAYER * index
            keys = None if sites is None else sites[first : first + SITES_PER_LAYER]
            if positions is not None and index == len(self.layers) - 1:
                hidden = layer(hidden, positions, positions.to(torch.int32), bias, keys)
            else:
                hidden = layer(hidden, None, every_row, bias, keys)
        with torch.autocast(hidden.device.type, enabled=False):  # a row of each sequence: fp32 costs nothing
            pooled = torch.tanh(self.pooler(hidden[:, 0].float()))
        return EncoderOutput(hidden, pooled)
