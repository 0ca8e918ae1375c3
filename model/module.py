"""The module that pre-training optimises: the encoder, its heads and their losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import EncoderConfig
from model.encoder import Encoder
from model.heads import MaskedLanguageHead, NextSentenceHead
from model.losses import cross_entropy_sum

NUM_SUMS = 4
"""Masked loss, next sentence loss, correct masked predictions, correct next sentence predictions."""


class PretrainingModule(nn.Module):
    """BERT with both heads. Strategy, precision and compilation are wrapped around it by Lightning and torch."""

    def __init__(self, config: EncoderConfig, next_sentence: bool = True) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.masked = MaskedLanguageHead(config)
        self.next_sentence = NextSentenceHead(config)
        self.has_next_sentence = next_sentence
        if not next_sentence:  # they get no gradient, and a distributed strategy would wait for one
            self.next_sentence.requires_grad_(False)
            self.encoder.pooler.requires_grad_(False)

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        lengths: Tensor,
        positions: Tensor,
        labels: Tensor,
        not_next: Tensor,
        sites: Tensor,
        weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch (see `model.feeding.Batch` for the shapes).

        Args:
            weights: (2,) fp32: what each masked position and each sequence counts for in the loss; one over their
                global numbers.

        Returns:
            The loss (scalar), and the sums of NUM_SUMS (fp32, without gradient).
        """
        length = input_ids.shape[1]
        attention_mask = torch.arange(length, device=lengths.device)[None] < lengths[:, None]
        hidden, pooled = self.encoder(input_ids, token_type_ids, attention_mask, dropout=sites, positions=positions)
        masked_rows = hidden[:, 1:].reshape(-1, hidden.shape[-1])
        logits = self.masked(masked_rows, self.encoder.embeddings.token.weight)
        masked = cross_entropy_sum(logits, labels.reshape(-1))
        loss = masked.loss * weights[0]
        zero = torch.zeros((), device=loss.device)
        sums = [masked.loss.detach(), zero, masked.num_correct.float(), zero]
        if self.has_next_sentence:
            following = cross_entropy_sum(self.next_sentence(pooled), not_next)
            loss = loss + following.loss * weights[1]
            sums[1], sums[3] = following.loss.detach(), following.num_correct.float()
        return loss, torch.stack(sums)
