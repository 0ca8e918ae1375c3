"""An encoder with a benchmark's head (Devlin et al. 2019, section 4), and its loss.

Heads are named as in `transformers` (classifier, qa_outputs), so that what is saved loads there as well.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.table import Benchmark
from model.encoder.encoder import Encoder, Layer
from model.heads.batches import FinetuneBatch
from model.ops.attention_kernels import AttentionMetadata
from model.ops.dropout_add_norm import drop
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext
from model.ops.fused_cpu import IGNORED
from model.ops.keyed_dropout import DropoutKey

ARCHITECTURES = {
    "classes": "BertForSequenceClassification",
    "regression": "BertForSequenceClassification",
    "choice": "BertForMultipleChoice",
    "span": "BertForQuestionAnswering",
    "tags": "BertForTokenClassification",
}
POOLED = ("classes", "regression", "choice")
"""Heads that read the pooled [CLS]."""
MASKED_OUT = -1e9  # a logit that no softmax sees, finite so that a row of padding alone stays finite


class TaskModel(nn.Module):
    """An encoder, dropout and one linear layer: on the pooled [CLS] for classes, regression and choice, on
    every token for span (no dropout) and tags.

    The layer starts from a truncated normal distribution of the encoder's `initializer_range`, keyed by
    `seed`.
    """

    def __init__(self, encoder: Encoder, benchmark: Benchmark, dropout: float, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.kind = benchmark.head
        self.group_size = len(benchmark.labels) if benchmark.head == "choice" else 1
        self.dropout = dropout
        self.num_adapters = 0
        """LoRA adapters with dropout; their dropout layers are numbered after the head's."""
        _set_dropout(encoder, dropout)
        config = encoder.config
        num_outputs = HEAD_SPECS[benchmark.head].num_outputs(benchmark)
        self.classifier = output_layer(config.hidden_size, num_outputs, config.initializer_range, seed)

    @property
    def head_name(self) -> str:
        """The head's name in `transformers`."""
        return "qa_outputs" if self.kind == "span" else "classifier"

    @property
    def reads_tokens(self) -> bool:
        """Whether the head reads every token rather than [CLS]."""
        return self.kind in ("span", "tags")

    def forward(
        self, batch: FinetuneBatch, key: DropoutKey | None = None, context: ForwardContext = DEFAULT_CONTEXT
    ) -> Tensor:
        """Logits in fp32: (rows, labels), (rows, 1) for regression, (sequences, length, width) for span and
        tags."""
        keys = None
        if key is not None and self.training and (self.dropout or self.num_adapters):
            keys = key.expand(self.encoder.num_dropouts + 1 + self.num_adapters)
        per_token = self.reads_tokens
        num_sequences, length = batch.input_ids.shape
        device = batch.input_ids.device
        queries = None
        if not per_token:  # the head reads only [CLS], so the last layer computes nothing else
            firsts = batch.firsts
            queries = (
                torch.arange(0, num_sequences * length, length, device=device)[:, None] if firsts is None else firsts
            )
        attention = AttentionMetadata(
            num_sequences, length, batch.attention_mask, indices=batch.indices, query_indices=queries
        )
        hidden, pooled = self.encoder(
            batch.input_ids, batch.token_type_ids, context=context._replace(attention=attention, dropout_keys=keys)
        )
        last = None if keys is None else keys[self.encoder.num_dropouts]
        if self.kind == "span":
            logits = self.classifier(hidden).float()
            if batch.attention_mask is not None:
                logits = logits.masked_fill(~batch.attention_mask[:, :, None], MASKED_OUT)
            return logits
        rows = torch.arange(length if per_token else 1, dtype=torch.int32, device=device)[None]
        if per_token:
            dropped = drop(hidden.flatten(0, 1), rows, last, self.dropout)
            return self.classifier(dropped.view(hidden.shape)).float()
        outputs = self.classifier(drop(pooled, rows, last, self.dropout)).float()
        return outputs.view(-1, self.group_size) if self.kind == "choice" else outputs

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the rows (over the labelled words for tags): cross-entropy, or squared error for
        regression.

        For span the mean of the two cross-entropies of start and end.
        """
        if self.kind == "regression":
            return F.mse_loss(logits[:, 0], targets)
        if self.kind == "span":
            starts, ends = logits.unbind(-1)
            return (F.cross_entropy(starts, targets[:, 0]) + F.cross_entropy(ends, targets[:, 1])) / 2
        if self.kind == "tags":
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        return F.cross_entropy(logits, targets)


def output_layer(width: int, num_outputs: int, deviation: float, seed: int) -> nn.Linear:
    """A linear layer that starts from a truncated normal distribution, keyed by `seed`, and a bias of 0."""
    layer = nn.Linear(width, num_outputs)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        nn.init.trunc_normal_(layer.weight, 0.0, deviation, -2 * deviation, 2 * deviation, generator)
        layer.bias.zero_()
    return layer


def _set_dropout(encoder: Encoder, rate: float) -> None:
    """Give every place of the encoder that drops this rate, whatever it was trained with."""
    encoder.config = encoder.config.model_copy(
        update={"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
    )
    encoder.embeddings.dropout = rate
    for layer in encoder.layers:
        assert isinstance(layer, Layer)
        layer.dropout = rate
        layer.attention.dropout = rate
