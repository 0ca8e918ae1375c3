"""`TaskModel`, an encoder with the output layer of a head (Devlin et al. 2019, section 4), and the registry of heads.

Output layers have the names of `transformers` (classifier, qa_outputs), so that it can load saved models.
"""

from __future__ import annotations

import pkgutil

import torch
from torch import Tensor, nn

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.table import Benchmark
from model.encoder.encoder import Encoder, Layer
from model.heads.batches import FinetuneBatch
from model.heads.head import Head
from model.ops.attention_kernels import AttentionMetadata
from model.ops.dropout_add_norm import drop
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext
from model.ops.keyed_dropout import DropoutKey

HEADS: dict[str, Head] = {name: pkgutil.resolve_name(spec.implementation)() for name, spec in HEAD_SPECS.items()}
"""The head module for each entry of `HEAD_SPECS`."""


class TaskModel(nn.Module):
    """An encoder, dropout (except for span), and the linear output layer of a head.

    The output layer is initialized from a truncated normal distribution of the encoder's `initializer_range`, keyed by
    `seed`.
    """

    has_frozen_features = False
    """Reads frozen hidden states (`model.finetune.frozen_features`); `transformers` has no such class."""

    def __init__(self, encoder: Encoder, benchmark: Benchmark, dropout: float, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = HEADS[benchmark.head]
        spec = HEAD_SPECS[benchmark.head]
        self.group_size = spec.sequences_per_row(benchmark)
        self.dropout = dropout
        self.num_adapters = 0
        """LoRA adapters with dropout; their dropout layers are numbered after the head's."""
        _set_dropout(encoder, dropout)
        config = encoder.config
        self.num_outputs = spec.num_outputs(benchmark)
        self.classifier = output_layer(config.hidden_size, self.num_outputs, config.initializer_range, seed)

    @property
    def output_width(self) -> int:
        """Number of logits per row, or per token for heads that read tokens."""
        return self.group_size * self.num_outputs

    def forward(
        self, batch: FinetuneBatch, key: DropoutKey | None = None, context: ForwardContext = DEFAULT_CONTEXT
    ) -> Tensor:
        """Compute fp32 logits, (rows, width), or (sequences, length, width) for heads that read tokens."""
        keys = None
        if key is not None and self.training and (self.dropout or self.num_adapters):
            keys = key.expand(self.encoder.num_dropouts + 1 + self.num_adapters)
        num_sequences, length = batch.input_ids.shape
        device = batch.input_ids.device
        queries = None
        if not self.head.reads_tokens:  # the head reads only [CLS], so the last layer computes nothing else
            queries = batch.firsts
            if queries is None:
                queries = torch.arange(0, num_sequences * length, length, device=device)[:, None]
        attention = AttentionMetadata(
            num_sequences, length, batch.attention_mask, indices=batch.indices, query_indices=queries
        )
        hidden, pooled = self.encoder(
            batch.input_ids, batch.token_type_ids, context=context._replace(attention=attention, dropout_keys=keys)
        )
        states = hidden if self.head.reads_tokens else pooled
        if self.head.has_dropout:
            last = None if keys is None else keys[self.encoder.num_dropouts]
            rows = torch.arange(length if self.head.reads_tokens else 1, dtype=torch.int32, device=device)[None]
            states = drop(states.flatten(0, -2), rows, last, self.dropout).view(states.shape)
        return self.finish(self.classifier(states).float(), batch)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the rows."""
        return self.head.loss(logits, targets)

    def finish(self, outputs: Tensor, batch: FinetuneBatch) -> Tensor:
        """Convert the output layer's results to logits: mask padding, and put a row's sequences side by side."""
        outputs = self.head.mask_padding(outputs, batch)
        return outputs.view(-1, self.output_width) if self.group_size > 1 else outputs


def output_layer(width: int, num_outputs: int, deviation: float, seed: int) -> nn.Linear:
    """Create a linear layer with truncated normal weights, keyed by `seed`, and zero bias."""
    layer = nn.Linear(width, num_outputs)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        nn.init.trunc_normal_(layer.weight, 0.0, deviation, -2 * deviation, 2 * deviation, generator)
        layer.bias.zero_()
    return layer


def _set_dropout(encoder: Encoder, rate: float) -> None:
    """Override all dropout rates of the encoder."""
    encoder.config = encoder.config.model_copy(
        update={"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
    )
    encoder.embeddings.dropout = rate
    for layer in encoder.layers:
        assert isinstance(layer, Layer)
        layer.dropout = rate
        layer.attention.dropout = rate
