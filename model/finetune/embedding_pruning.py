"""Trains only those rows of the token embedding that a job's texts use.

Every other row has no gradient, so Adam leaves it alone but for weight decay, which multiplies it by a factor that is
known beforehand. The result is the same up to the rounding of that factor, and a step is spared a pass over a matrix
that, in a small encoder with a real vocabulary, is most of the parameters (several passes: gradient, norm, update).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from model.encoder.encoder import Encoder
from model.heads.features import Features, Ragged


class UsedTokens:
    """The token ids that some sequences use, numbered anew from 0 in their order."""

    def __init__(self, parts: Iterable[Features], pad_id: int, vocab_size: int) -> None:
        used = np.zeros(vocab_size, dtype=bool)
        used[pad_id] = True
        for features in parts:
            used[features.sequences.values] = True
        self.ids = np.flatnonzero(used)
        self._number = (np.cumsum(used) - 1).astype(np.int32)
        self.pad_id = int(self._number[pad_id])
        self._whole: Tensor | None = None

    def renumber(self, features: Features) -> Features:
        """The same sequences in the new numbers."""
        sequences = Ragged(self._number[features.sequences.values], features.sequences.offsets)
        return dataclasses.replace(features, sequences=sequences)

    def narrow(self, encoder: Encoder) -> None:
        """Leave the encoder only the used rows of its token embedding."""
        self._whole = encoder.embeddings.token.weight.detach()
        _set_rows(encoder, self._whole[torch.from_numpy(self.ids).to(self._whole.device)])

    def widen(self, encoder: Encoder, decay: float) -> None:
        """Give the encoder all rows again, the unused ones multiplied by `decay`."""
        assert self._whole is not None, "narrow comes first"
        rows = encoder.embeddings.token.weight.detach()
        whole = self._whole.to(rows.device) * decay
        whole[torch.from_numpy(self.ids).to(rows.device)] = rows
        _set_rows(encoder, whole)


def _set_rows(encoder: Encoder, weight: Tensor) -> None:
    encoder.embeddings.token = nn.Embedding.from_pretrained(weight.clone(), freeze=False)
