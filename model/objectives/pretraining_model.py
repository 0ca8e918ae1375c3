"""The module that pre-training optimises: the encoder, its heads and their losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config.encoder import EncoderConfig
from model.config.pretraining import SentenceObjective
from model.data.collator import PretrainBatch
from model.data.loader import Metric
from model.encoder.encoder import Encoder
from model.objectives.heads import MaskedLanguageHead, NextSentenceHead
from model.ops.attention_kernels import AttentionMetadata
from model.ops.cross_entropy import cross_entropy_sum
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext

PAIR_METRICS: dict[SentenceObjective, str] = {"next_sentence": "nsp", "sentence_order": "sop"}


def metrics_of(objective: SentenceObjective) -> tuple[Metric, ...]:
    """Metrics of masked language modeling, and of the sentence objective where there is one."""
    found = Metric("mlm_loss", "prediction", 1.0), Metric("mlm_accuracy", "prediction", 0.0)
    if objective not in PAIR_METRICS:
        return found
    name = PAIR_METRICS[objective]
    return *found, Metric(f"{name}_loss", "sequence", 1.0), Metric(f"{name}_accuracy", "sequence", 0.0)


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


class PretrainingModule(nn.Module):
    """BERT with both heads. Strategy, precision and compilation are wrapped around it by Lightning and torch.

    Args:
        config: the encoder's sizes.
        pairs: whether there are pairs, whose class (next sentence, sentence order) is predicted from [CLS].
    """

    def __init__(self, config: EncoderConfig, pairs: bool = True) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.masked = MaskedLanguageHead(config)
        self.next_sentence = NextSentenceHead(config)
        self.has_pairs = pairs
        if not pairs:  # they get no gradient, and a distributed strategy would wait for one
            self.next_sentence.requires_grad_(False)
            self.encoder.pooler.requires_grad_(False)

    @property
    def output_matrix(self) -> Tensor:
        """(vocab_size, hidden): the token embedding, which logits are products with, too."""
        return self.encoder.embeddings.token.weight

    def forward(
        self, batch: PretrainBatch, weights: Tensor, context: ForwardContext = DEFAULT_CONTEXT
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch.

        Args:
            weights: (num_metrics,) fp32, the weight of each sum in the loss.
            context: attention kernel and low-precision copies of the weights.

        Returns:
            The loss (scalar), and the sums of the objective's metrics (num_metrics,), fp32 and without gradient.
        """
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
