"""The module that pre-training optimises: the encoder, its heads and their losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config.encoder import EncoderConfig
from model.data.collator import PretrainBatch
from model.encoder.encoder import Encoder
from model.objectives.heads import MaskedLanguageHead, NextSentenceHead
from model.ops.attention_kernels import AttentionMetadata
from model.ops.cross_entropy import cross_entropy_sum
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext

NUM_SUMS = 4
"""Masked loss, the pairs' loss, correct masked predictions, correct classes of pairs."""


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
            weights: (2,) fp32, the weight of each masked position and of each sequence in the loss: one over their
                global numbers.
            context: attention kernel and low-precision copies of the weights.

        Returns:
            The loss (scalar), and the sums of NUM_SUMS (fp32, without gradient).
        """
        attention, position_ids = attention_metadata(batch)
        context = context._replace(attention=attention, dropout_keys=batch.dropout_keys)
        hidden, pooled = self.encoder(batch.input_ids, batch.token_type_ids, position_ids=position_ids, context=context)
        masked_rows = hidden[:, 1:].reshape(-1, hidden.shape[-1])
        logits = self.masked(masked_rows, self.output_matrix, context)
        masked = cross_entropy_sum(logits, batch.labels.reshape(-1))
        loss = masked.loss * weights[0]
        zero = torch.zeros((), device=loss.device)
        sums = [masked.loss.detach(), zero, masked.num_correct.float(), zero]
        if self.has_pairs:
            pair = cross_entropy_sum(self.next_sentence(pooled), batch.pair_label)
            loss = loss + pair.loss * weights[1]
            sums[1], sums[3] = pair.loss.detach(), pair.num_correct.float()
        return loss, torch.stack(sums)
