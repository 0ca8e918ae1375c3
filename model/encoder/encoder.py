"""The encoder of BERT (Devlin et al. 2019, section 3): post-LN transformer layers over summed embeddings."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config.encoder import EncoderConfig
from model.encoder.attention import HIDDEN, Kernel, Seen, SelfAttention, blocks_of
from model.ops.dropout_add_norm import add_and_norm, drop
from model.ops.keyed_dropout import DropoutKey
from model.ops.linear import Linear, look_up

SITES_PER_LAYER = 3  # attention probabilities, attention output, feed-forward output


class EncoderOutput(NamedTuple):
    """What the encoder gives."""

    last_hidden_state: Tensor
    """(batch, length, hidden), or (batch, num_positions, hidden) where positions were asked for."""
    pooler_output: Tensor
    """(batch, hidden): tanh of a linear map of the first position ([CLS])."""


class Embeddings(nn.Module):
    """The sum of token, segment and position embeddings, then LayerNorm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """(num_tokens,) ids, segments and positions to (num_tokens, hidden)."""
        places = self.segment(token_type_ids) + self.position(position_ids)
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
        self, hidden: Tensor, wanted: Tensor | None, rows: Tensor, seen: Seen, keys: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """One layer.

        Args:
            hidden: (num_tokens, hidden).
            wanted: (batch, num_wanted) int64, the tokens to compute, those of each row; None for all of them.
            rows: what is computed as `drop` takes it.
            seen: where the tokens lie and what they see.
            keys: the layer's dropout keys for probabilities (batch, 2) and, for what is computed, (2, num_keys, 2); or
                None.

        Returns:
            (num_tokens or batch * num_wanted, hidden).
        """
        at_probabilities, at_attention, at_output = None, None, None
        if keys is not None:
            at_probabilities = keys[0] if self.attention.dropout else None
            at_attention, at_output = keys[1].unbind(0)
        attended = self.attention(hidden, wanted, seen, at_probabilities)
        if wanted is not None:
            hidden = hidden.index_select(0, wanted.flatten())
        hidden = add_and_norm(hidden, attended, rows, at_attention, self.dropout, self.attention_norm)
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

    @property
    def kernel(self) -> Kernel:
        """The attention kernel (see `model.encoder.attention`); always `batched` outside of training."""
        return "batched" if not self.training else self.layers[0].attention.kernel  # type: ignore[union-attr, return-value]

    @kernel.setter
    def kernel(self, kernel: Kernel) -> None:
        for layer in self.layers:
            layer.attention.kernel = kernel  # type: ignore[union-attr]

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        dropout: DropoutKey | Tensor | None = None,
        positions: Tensor | None = None,
        tokens: Tensor | None = None,
        borders: Tensor | None = None,
    ) -> EncoderOutput:
        """Encode.

        Inside, all is computed on (num_tokens, hidden): what is padding may be left out before the embedding, and only
        the batched kernel of attention brings tokens into rectangles.

        Args:
            input_ids: (batch, length), integers.
            token_type_ids: (batch, length), segment 0 or 1; all 0 where None.
            attention_mask: (batch, length), 1 (or True) for tokens and 0 for padding, or (batch, length, length), what
                each position sees; None where all see all. The kernels `flex` and `flash` take `borders` instead.
            position_ids: (batch, length), the position that each token is embedded with; 0, 1, 2, ... where None.
            dropout: the key of this batch's dropout, or its sites already computed (num_sites, batch, 2); it counts
                only in training mode, and without one nothing is dropped.
            positions: (batch, num_positions) int64, the positions whose hidden states are wanted, [CLS] first.
                The last layer then computes no others: with two layers a third of the work is saved. The values
                (and the dropout) are those of the full computation. Where `tokens` are given, these are numbers of
                tokens.
            tokens: (num_tokens,) int64, places in the flattened (batch, length), all different, that are computed at
                all; None for all of them.
            borders: (num_pieces + 1,) int32, see `model.encoder.attention.Seen`.
        """
        batch, length = input_ids.shape
        assert length <= self.config.max_position_embeddings, "sequence longer than the position table"
        assert tokens is None or positions is not None, "without padding, say which hidden states are wanted"
        device = input_ids.device
        bias, blocks = None, None
        if attention_mask is not None:
            seen_places = attention_mask.bool()
            seen_places = seen_places[:, None, :] if seen_places.ndim == 2 else seen_places
            bias = (~seen_places).to(torch.float32) * HIDDEN
        if self.kernel == "flex":
            assert borders is not None, "flex needs borders"
            blocks = blocks_of(borders, batch * length if tokens is None else len(tokens))
        seen = Seen(batch, length, tokens, bias, borders, blocks)
        places = seen.places(device)
        sites = dropout.sites(self.num_sites) if isinstance(dropout, DropoutKey) else dropout
        if not self.training:
            sites = None
        rows = places % length

        def of_places(values: Tensor | None, default: Tensor) -> Tensor:
            if values is None:
                return default
            return values.flatten() if tokens is None else values.flatten().index_select(0, tokens)

        segments = of_places(token_type_ids, torch.zeros_like(rows))
        hidden = self.embeddings(of_places(input_ids, rows), segments, of_places(position_ids, rows))
        # Where rows are whole, all of a row's tokens have its key; else every token brings its own.
        of_tokens = sites if tokens is None or sites is None else sites.index_select(1, places // length)
        rows = (rows[:length][None] if tokens is None else rows[:, None]).to(torch.int32)
        hidden = drop(hidden, rows, None if of_tokens is None else of_tokens[0], self.config.hidden_dropout_prob)
        wanted = None
        for index, layer in enumerate(self.layers):
            if positions is not None and index == len(self.layers) - 1:
                wanted, rows, of_tokens = positions, positions.to(torch.int32), sites
                if tokens is None:
                    wanted = positions + torch.arange(0, batch * length, length, device=device)[:, None]
                else:
                    rows = (tokens % length).to(torch.int32).index_select(0, positions.flatten()).view(batch, -1)
            first = 1 + SITES_PER_LAYER * index
            keys = None
            if sites is not None and of_tokens is not None:
                keys = sites[first], of_tokens[first + 1 : first + SITES_PER_LAYER]
            hidden = layer(hidden, wanted, rows, seen, keys)
        hidden = hidden.view(batch, -1, hidden.shape[1])
        with torch.autocast(device.type, enabled=False):  # a row of each sequence: fp32 costs nothing
            pooled = torch.tanh(self.pooler(hidden[:, 0].float()))
        return EncoderOutput(hidden, pooled)
