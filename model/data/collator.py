"""Batches: from sample numbers to the arrays that the model reads.

A batch is built in microseconds by one compiled pass over a few thousand tokens, so it is built between two steps, on
the thread that trains: no workers, no queues, nothing to restore but the number of the next sample. On a GPU that
happens while the device still computes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from model.common.rng import Integer, fold, key_of
from model.config.pretraining import Masking
from model.data.layout import lay_out_pair, lay_out_pieces
from model.data.masking import IGNORED, count_in_words, mask_sample, num_predictions
from model.data.sampler import EpochPlans, Samples
from model.data.token_store import TokenStore
from model.data.unpadding import Unpadding, unpad
from model.ops.keyed_dropout import DropoutKey
from model.tokenizer.vocabulary import Vocabulary


class PretrainBatch(NamedTuple):
    """Input of the pre-training module. The shapes depend only on the phase."""

    input_ids: Tensor
    """(batch, length) int64."""
    token_type_ids: Tensor
    """(batch, length) int64: 0 for [CLS] A [SEP], 1 for B [SEP]; 0 in packed rows."""
    lengths: Tensor
    """(batch,) int64: tokens of each sequence; padding follows."""
    positions: Tensor
    """(batch, 1 + predictions) int64: [CLS], then the positions to predict; unused ones are 0. Positions in the row or,
    if `indices` are given, numbers of computed tokens."""
    labels: Tensor
    """(batch, predictions) int64: the original tokens; unused ones are IGNORED."""
    pair_label: Tensor
    """(batch,) int64: the class of each pair; 0 in packed rows."""
    dropout_keys: Tensor
    """(num_dropouts, batch, 2) int32."""
    segment_starts: Tensor
    """(batch, length) int64: for each position of a packed row, the position of its segment's [CLS]; padding is a
    segment, too. (batch, 0) for pairs."""
    indices: Tensor
    """(num_tokens,) int64: positions in the flattened (batch, length) that are computed: the tokens in order, then as
    much padding as rounds their number up; (0,) if all positions are computed."""
    cu_seqlens: Tensor
    """(num_segments + 1,) int32: cumulative lengths of the attention segments among the computed tokens; (0,) if all
    positions are computed."""


class Counts(NamedTuple):
    """Of a whole step, over all ranks."""

    num_sequences: int
    """Sequences."""
    num_predictions: int
    """Masked positions."""
    num_tokens: int
    """Tokens, special ones counted, padding not."""


class _Source(NamedTuple):
    """What compiled code lays samples out from."""

    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    is_packed: bool
    cls_id: int
    sep_id: int


@numba.njit(cache=True, nogil=True)
def _lay_out(
    source: Any,
    columns: Any,
    row: int,
    ids: np.ndarray,
    segments: np.ndarray,
    segment_starts: np.ndarray,
    scratch: np.ndarray,
) -> np.ndarray:
    """Sample `row` of `columns` (see `Samples`) into one row of each array; the positions that may be masked."""
    first_start, first_length, second_start, second_length = columns[0], columns[1], columns[2], columns[3]
    if source.is_packed:
        lay_out_pieces(
            source.tokens, source.sentence_offsets, source.document_offsets, first_start[row], first_length[row],
            source.cls_id, source.sep_id, ids, segment_starts, scratch,
        )  # fmt: skip
    else:
        lay_out_pair(
            source.tokens, first_start[row], first_length[row], second_start[row], second_length[row],
            source.cls_id, source.sep_id, ids, segments, scratch,
        )  # fmt: skip
    return scratch[: first_length[row] + second_length[row]]


@numba.njit(cache=True, nogil=True)
def _fill(
    source: Any,
    columns: Any,
    lengths: np.ndarray,
    first_sample: int,
    mask_key: Integer,
    rates: np.ndarray,
    mask_id: int,
    vocab_size: int,
    is_continuation: np.ndarray,
    input_ids: np.ndarray,
    token_type_ids: np.ndarray,
    segment_starts: np.ndarray,
    positions: np.ndarray,
    labels: np.ndarray,
) -> None:
    scratch = np.empty(input_ids.shape[1], dtype=np.int64)
    for row in range(len(input_ids)):
        places = _lay_out(source, columns, row, input_ids[row], token_type_ids[row], segment_starts[row], scratch)
        key = fold(mask_key, np.uint64(first_sample + row))
        mask_sample(
            input_ids[row], places, lengths[row], key, rates, labels.shape[1], mask_id, vocab_size, is_continuation,
            positions[row, 1:], labels[row],
        )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _count_in_words(
    source: Any,
    columns: Any,
    lengths: np.ndarray,
    first_sample: int,
    mask_key: Integer,
    rate: float,
    limit: int,
    is_continuation: np.ndarray,
    sequence_length: int,
) -> int:
    ids, segments, segment_starts, scratch = np.empty((4, sequence_length), dtype=np.int64)
    total = 0
    for row in range(len(lengths)):
        places = _lay_out(source, columns, row, ids, segments, segment_starts, scratch)
        key = fold(mask_key, np.uint64(first_sample + row))
        total += count_in_words(ids, places, lengths[row], key, rate, limit, is_continuation)
    return total


class Feeder:
    """The batches of one phase (or of validation).

    Args:
        plans: which samples there are.
        store: the tokens that the plans point into.
        sequence_length: length of the arrays.
        first_sample: global number of the plans' sample 0.
        masking: rates.
        vocabulary: ids of the special tokens, and what is a word.
        seed: keys masks and dropout.
        num_dropouts: places of the encoder that drop; 0 for no dropout.
        unpadding: how padding is left out; None keeps it.
    """

    def __init__(
        self,
        plans: EpochPlans,
        store: TokenStore,
        sequence_length: int,
        first_sample: int,
        masking: Masking,
        vocabulary: Vocabulary,
        seed: int,
        num_dropouts: int,
        unpadding: Unpadding | None = None,
    ) -> None:
        self._plans = plans
        self._vocab_size = store.vocab_size
        self._length = sequence_length
        self._first_sample = first_sample
        self._rates = np.array([masking.rate, masking.mask, masking.random])
        limit = sequence_length if masking.max_predictions is None else masking.max_predictions
        self.max_predictions = num_predictions(sequence_length, masking.rate, limit)
        self._specials = vocabulary.specials
        self._is_continuation = vocabulary.is_continuation if masking.whole_words else np.zeros(0, dtype=bool)
        self._seed = seed
        self._mask_key = np.uint64(key_of(seed, 0x6D61736B))
        self._num_dropouts = num_dropouts
        self._unpadding = unpadding
        self._is_packed = plans.objective == "none"
        self._source = _Source(
            store.tokens,
            store.sentence_offsets,
            store.document_offsets,
            self._is_packed,
            self._specials.cls,
            self._specials.sep,
        )

    def samples(self, first: int, count: int) -> Samples:
        """Samples `first` to `first + count - 1` of the phase."""
        return self._plans.samples(first, count)

    def counts(self, samples: Samples, first: int) -> Counts:
        """What a step over `samples`, from number `first` of the phase on, consists of.

        Every rank knows it without asking the others: with whole words it looks at the words of all samples.
        """
        lengths = samples.lengths
        if len(self._is_continuation):
            num_masked = _count_in_words(
                self._source,
                samples.columns(),
                lengths,
                self._first_sample + first,
                self._mask_key,
                self._rates[0],
                self.max_predictions,
                self._is_continuation,
                self._length,
            )
        else:
            wanted = np.clip(np.rint(self._rates[0] * lengths), 1, self.max_predictions).astype(np.int64)
            num_masked = np.minimum(wanted, lengths - samples.num_specials).sum()
        return Counts(len(samples), int(num_masked), int(lengths.sum()))

    def build(self, samples: Samples, first: int, step: int) -> PretrainBatch:
        """The batch of `samples`, whose first one is number `first` of the phase, at optimiser step `step`."""
        batch, length, most = len(samples), self._length, self.max_predictions
        input_ids = np.full((batch, length), self._specials.pad, dtype=np.int64)
        token_type_ids = np.zeros((batch, length), dtype=np.int64)
        segment_starts = np.zeros((batch, length if self._is_packed else 0), dtype=np.int64)
        positions = np.zeros((batch, 1 + most), dtype=np.int64)
        labels = np.full((batch, most), IGNORED, dtype=np.int64)
        lengths = samples.lengths
        first_sample = self._first_sample + first
        _fill(
            self._source,
            samples.columns(),
            lengths,
            first_sample,
            self._mask_key,
            self._rates,
            self._specials.mask,
            self._vocab_size,
            self._is_continuation,
            input_ids,
            token_type_ids,
            segment_starts,
            positions,
            labels,
        )
        numbers = torch.arange(first_sample, first_sample + batch)
        indices, cu_seqlens = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        if self._unpadding is not None and lengths.sum() <= (1 - self._unpadding.least_share) * input_ids.size:
            indices, cu_seqlens = unpad(lengths, segment_starts, length, self._unpadding.granule)
            positions += (np.cumsum(lengths) - lengths)[:, None]
        return PretrainBatch(
            torch.from_numpy(input_ids),
            torch.from_numpy(token_type_ids),
            torch.from_numpy(lengths),
            torch.from_numpy(positions),
            torch.from_numpy(labels),
            torch.from_numpy(samples.pair_label.astype(np.int64)),
            DropoutKey(self._seed, step, numbers).expand(self._num_dropouts),
            torch.from_numpy(segment_starts),
            torch.from_numpy(indices),
            torch.from_numpy(cu_seqlens),
        )
