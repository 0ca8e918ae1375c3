"""The module that pre-training optimises: the encoder, its heads and their losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.objectives.heads import MaskedLanguageHead, NextSentenceHead
from model.ops.cross_entropy import cross_entropy_sum

NUM_SUMS = 4
"""Masked loss, the pairs' loss, correct masked predictions, correct classes of pairs."""


def see_own_piece(piece_starts: Tensor) -> tuple[Tensor, Tensor]:
    """What the encoder needs to compute each piece of packed rows as if it were alone.

    Args:
        piece_starts: (batch, length), see `model.data.collator.Batch`.

    Returns:
        The attention mask (batch, length, length) bool, and the position ids (batch, length), from 0 in each piece.
    """
    attention_mask = piece_starts[:, :, None] == piece_starts[:, None, :]
    return attention_mask, torch.arange(piece_starts.shape[1], device=piece_starts.device)[None] - piece_starts


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
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        lengths: Tensor,
        positions: Tensor,
        labels: Tensor,
        pair_label: Tensor,
        sites: Tensor,
        piece_starts: Tensor,
        tokens: Tensor,
        borders: Tensor,
        weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch (see `model.data.collator.Batch` for the shapes).

        Args:
            weights: (2,) fp32: what each masked position and each sequence counts for in the loss; one over their
                global numbers.

        Returns:
            The loss (scalar), and the sums of NUM_SUMS (fp32, without gradient).
        """
        position_ids = None
        if piece_starts.shape[1]:
            attention_mask, position_ids = see_own_piece(piece_starts)
        else:
            attention_mask = torch.arange(input_ids.shape[1], device=lengths.device)[None] < lengths[:, None]
        hidden, pooled = self.encoder(
            input_ids,
            token_type_ids,
            attention_mask if self.encoder.kernel == "batched" else None,
            position_ids=position_ids,
            dropout=sites,
            positions=positions,
            tokens=tokens if len(tokens) else None,
            borders=borders,
        )
        masked_rows = hidden[:, 1:].reshape(-1, hidden.shape[-1])
        logits = self.masked(masked_rows, self.output_matrix)
        masked = cross_entropy_sum(logits, labels.reshape(-1))
        loss = masked.loss * weights[0]
        zero = torch.zeros((), device=loss.device)
        sums = [masked.loss.detach(), zero, masked.num_correct.float(), zero]
        if self.has_pairs:
            pair = cross_entropy_sum(self.next_sentence(pooled), pair_label)
            loss = loss + pair.loss * weights[1]
            sums[1], sums[3] = pair.loss.detach(), pair.num_correct.float()
        return loss, torch.stack(sums)
