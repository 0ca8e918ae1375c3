"""Masked language modeling and the class of a sentence pair (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config.encoder import EncoderConfig
from model.config.pretraining import SampleKind
from model.data.collator import PretrainBatch
from model.data.loader import Metric
from model.encoder.encoder import Encoder
from model.objectives.objective import Objective, TrainingModule
from model.ops.attention_kernels import AttentionMetadata
from model.ops.cross_entropy import cross_entropy_sum
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext
from model.ops.linear import Linear

_UNUSED_LOGIT = -1e4  # finite in every precision, and far below all other logits


class MaskedLanguageHead(nn.Module):
    """Linear, GELU, LayerNorm, then the token embedding as output matrix, with a separate bias."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, token_embedding: Tensor, context: ForwardContext = DEFAULT_CONTEXT) -> Tensor:
        """Map (num_positions, hidden) to logits (num_positions, vocab_size).

        On a GPU the logits are padded to a multiple of 64, as its matrix units prefer.
        """
        hidden = self.norm(F.gelu(self.transform(hidden, context)))
        matrix = context.weight(token_embedding)
        if hidden.device.type == "cuda":
            return F.linear(hidden, *aligned(matrix, self.bias))
        return F.linear(hidden, matrix, self.bias)


def aligned(matrix: Tensor, bias: Tensor, multiple: int = 64) -> tuple[Tensor, Tensor]:
    """Pad the rows of an output matrix and its bias to a multiple; the softmax gives the added logits nothing."""
    missing = -len(matrix) % multiple
    if not missing:
        return matrix, bias
    return F.pad(matrix, (0, 0, 0, missing)), F.pad(bias, (0, missing), value=_UNUSED_LOGIT)


class NextSentenceHead(nn.Module):
    """Linear layer on the pooled output; class 0 is IsNext (or in order), class 1 NotNext (or swapped)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (batch, hidden) to logits (batch, 2), always in fp32.

        In bf16 the gradients of this bias and the pooler's, which nearly cancel over a batch of both classes, would be
        off by several percent.
        """
        with torch.autocast(pooled.device.type, enabled=False):
            return self.output(pooled.float())


def attention_metadata(batch: PretrainBatch) -> tuple[AttentionMetadata, Tensor | None]:
    """Layout and mask of a batch, and the position ids (batch, length) of packed rows, from 0 in each segment."""
    rows, length = batch.input_ids.shape
    index = torch.arange(length, device=batch.input_ids.device)[None]
    is_packed = bool(batch.segment_starts.shape[1])
    indices = batch.indices if len(batch.indices) else None
    queries = batch.positions
    if indices is None:
        queries = queries + torch.arange(0, rows * length, length, device=queries.device)[:, None]
    metadata = AttentionMetadata(
        rows,
        length,
        segments=batch.segment_starts if is_packed else index < batch.lengths[:, None],
        is_packed=is_packed,
        indices=indices,
        query_indices=queries,
        cu_seqlens=batch.cu_seqlens,
    )
    return metadata, index - batch.segment_starts if is_packed else None


class PretrainingModule(TrainingModule):
    """An encoder with both heads; with `pairs`, the class of a pair is predicted from [CLS]."""

    def __init__(self, config: EncoderConfig, pairs: bool = True) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.masked = MaskedLanguageHead(config)
        self.next_sentence = NextSentenceHead(config)
        self.has_pairs = pairs
        if not pairs:  # without a gradient, for which a distributed strategy would wait
            self.next_sentence.requires_grad_(False)
            self.encoder.pooler.requires_grad_(False)

    @property
    def output_matrix(self) -> Tensor:
        """(vocab_size, hidden): the token embedding, which is also the output matrix."""
        return self.encoder.embeddings.token.weight

    def forward(
        self, batch: PretrainBatch, weights: Tensor, context: ForwardContext = DEFAULT_CONTEXT
    ) -> tuple[Tensor, Tensor]:
        attention, position_ids = attention_metadata(batch)
        context = context._replace(attention=attention, dropout_keys=batch.dropout_keys)
        hidden, pooled = self.encoder(batch.input_ids, batch.token_type_ids, position_ids=position_ids, context=context)
        masked_rows = hidden[:, 1:].reshape(-1, hidden.shape[-1])
        logits = self.masked(masked_rows, self.output_matrix, context)
        masked = cross_entropy_sum(logits, batch.labels.reshape(-1))
        loss = masked.loss * weights[0]
        sums = [masked.loss.detach(), masked.num_correct.float()]
        if self.has_pairs:
            pair = cross_entropy_sum(self.next_sentence(pooled), batch.pair_label)
            loss = loss + pair.loss * weights[2]
            sums += [pair.loss.detach(), pair.num_correct.float()]
        return loss, torch.stack(sums)


class MaskedLanguageModeling(Objective):
    """Masked language modeling on one kind of samples, with or without the class of the pair.

    Args:
        pair_metric: prefix of the metrics of the pair's class ("nsp", "sop"); None does not predict the class.
    """

    def __init__(self, samples: SampleKind, pair_metric: str | None = None) -> None:
        self.samples = samples
        self._has_pairs = pair_metric is not None
        masked = Metric("mlm_loss", "prediction", 1.0), Metric("mlm_accuracy", "prediction", 0.0)
        pair = Metric(f"{pair_metric}_loss", "sequence", 1.0), Metric(f"{pair_metric}_accuracy", "sequence", 0.0)
        self.metrics = (*masked, *pair) if self._has_pairs else masked

    def build(self, config: EncoderConfig) -> PretrainingModule:
        return PretrainingModule(config, self._has_pairs)

    def published(self, module: PretrainingModule) -> dict[str, Any]:
        if not self._has_pairs:
            return {"masked": module.masked, "has_pooler": False}
        return {
            "masked": module.masked,
            "next_sentence": module.next_sentence,
            "sentence_objective": self.samples,
        }
