"""Batches: from sample numbers to the arrays that the model reads.

A batch is built in microseconds by one compiled pass over a few thousand tokens, so it is built between two steps, on
the thread that trains: no workers, no queues, nothing to restore but the number of the next sample. On a GPU that
happens while the device still computes.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from model.counter import DropoutKey, Integer, fold, key_of
from model.errors import UserError
from model.masking import IGNORED, mask_sample, num_predictions
from model.pairs import EpochPlans, Spans
from model.pretrain_recipe import Masking
from model.token_store import TokenStore
from model.wordpiece import SpecialIds


class Batch(NamedTuple):
    """Samples as the pre-training module reads them; shapes depend on the phase alone."""

    input_ids: Tensor
    """(batch, length) int64."""
    token_type_ids: Tensor
    """(batch, length) int64: 0 for [CLS] A [SEP], 1 for B [SEP]."""
    lengths: Tensor
    """(batch,) int64: tokens of each sequence; padding follows."""
    positions: Tensor
    """(batch, 1 + predictions) int64: [CLS], then the positions to predict; unused ones are 0."""
    labels: Tensor
    """(batch, predictions) int64: the tokens that stood there; unused ones are IGNORED."""
    not_next: Tensor
    """(batch,) int64: the next sentence class."""
    sites: Tensor
    """(num_sites, batch, 2) int32: dropout keys."""


class Counts(NamedTuple):
    """Of a whole step, over all ranks."""

    num_sequences: int
    """Sequences."""
    num_predictions: int
    """Masked positions."""
    num_tokens: int
    """Tokens, special ones counted, padding not."""


@numba.njit(cache=True, nogil=True)
def _fill(
    tokens: np.ndarray,
    first_start: np.ndarray,
    first_length: np.ndarray,
    second_start: np.ndarray,
    second_length: np.ndarray,
    first_sample: int,
    mask_key: Integer,
    rates: np.ndarray,
    cls_id: int,
    sep_id: int,
    mask_id: int,
    vocab_size: int,
    input_ids: np.ndarray,
    token_type_ids: np.ndarray,
    positions: np.ndarray,
    labels: np.ndarray,
) -> None:
    for row in range(len(input_ids)):
        ids, a, b = input_ids[row], first_length[row], second_length[row]
        ids[0] = cls_id
        start = first_start[row]
        for index in range(a):
            ids[1 + index] = tokens[start + index]
        ids[1 + a] = sep_id
        if b > 0:
            start = second_start[row]
            for index in range(b):
                ids[2 + a + index] = tokens[start + index]
            ids[2 + a + b] = sep_id
            token_type_ids[row, 2 + a : 3 + a + b] = 1
        key = fold(mask_key, np.uint64(first_sample + row))
        most = labels.shape[1]
        mask_sample(ids, a, b, key, rates, most, mask_id, vocab_size, positions[row, 1:], labels[row])


class Feeder:
    """The batches of one phase (or of validation).

    Args:
        plans: which samples there are.
        store: the tokens that the plans point into.
        sequence_length: length of the arrays.
        first_sample: global number of the plans' sample 0.
        masking: rates.
        specials: ids of the special tokens.
        seed: keys masks and dropout.
        num_sites: places of the encoder that drop; 0 for no dropout.
    """

    def __init__(
        self,
        plans: EpochPlans,
        store: TokenStore,
        sequence_length: int,
        first_sample: int,
        masking: Masking,
        specials: SpecialIds,
        seed: int,
        num_sites: int,
    ) -> None:
        self._plans = plans
        self._store = store
        self._length = sequence_length
        self._first_sample = first_sample
        self._rates = np.array([masking.rate, masking.mask, masking.random])
        limit = sequence_length if masking.max_predictions is None else masking.max_predictions
        self.max_predictions = num_predictions(sequence_length, masking.rate, limit)
        self._specials = specials
        self._seed = seed
        self._mask_key = np.uint64(key_of(seed, 0x6D61736B))
        self._num_sites = num_sites

    def spans(self, first: int, count: int) -> Spans:
        """Samples `first` to `first + count - 1` of the phase."""
        return self._plans.spans(first, count)

    def counts(self, spans: Spans) -> Counts:
        """What a step over `spans` consists of; every rank knows it without asking the others."""
        lengths = spans.lengths
        predictions = np.clip(np.rint(self._rates[0] * lengths), 1, self.max_predictions).astype(np.int64)
        candidates = spans.first_length.astype(np.int64) + spans.second_length
        return Counts(len(spans), int(np.minimum(predictions, candidates).sum()), int(lengths.sum()))

    def build(self, spans: Spans, first: int, step: int) -> Batch:
        """The batch of `spans`, whose first one is number `first` of the phase, at optimiser step `step`."""
        batch, length, most = len(spans), self._length, self.max_predictions
        input_ids = np.full((batch, length), self._specials.pad, dtype=np.int64)
        token_type_ids = np.zeros((batch, length), dtype=np.int64)
        positions = np.zeros((batch, 1 + most), dtype=np.int64)
        labels = np.full((batch, most), IGNORED, dtype=np.int64)
        first_sample = self._first_sample + first
        _fill(
            self._store.tokens,
            spans.first_start,
            spans.first_length,
            spans.second_start,
            spans.second_length,
            first_sample,
            self._mask_key,
            self._rates,
            self._specials.cls,
            self._specials.sep,
            self._specials.mask,
            self._store.vocab_size,
            input_ids,
            token_type_ids,
            positions,
            labels,
        )
        samples = torch.arange(first_sample, first_sample + batch)
        return Batch(
            torch.from_numpy(input_ids),
            torch.from_numpy(token_type_ids),
            torch.from_numpy(spans.lengths),
            torch.from_numpy(positions),
            torch.from_numpy(labels),
            torch.from_numpy(spans.not_next.astype(np.int64)),
            DropoutKey(self._seed, step, samples).sites(self._num_sites),
        )


def check_store(store: TokenStore, pairs: bool) -> None:
    """Refuse a part of a token store that gives no samples.

    Raises:
        UserError: when there are too few documents.
    """
    needed = 2 if pairs else 1
    if store.num_documents < needed:
        reason = "; the next sentence task draws from other documents" if pairs else ""
        raise UserError(
            f"{store.directory / store.part}: {store.num_documents} documents, expected at least {needed}{reason}"
        )
