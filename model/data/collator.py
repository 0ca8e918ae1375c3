"""The collator of pre-training: builds the arrays of a batch from its samples.

One compiled pass lays out and masks a batch in microseconds. Batches are therefore built between two steps on the
training thread, without workers or queues, and the number of the next sample is the only state. On a GPU this overlaps
with computation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from model.common.rng import Domain, Integer, Key, fold
from model.config.pretraining import Masking
from model.data.masking import count_in_words, mask_sample, num_predictions
from model.data.sampler import EpochSampler, Samples
from model.data.sequence_packing import document_at
from model.data.token_store import TokenStore
from model.data.unpadding import Unpadding, unpad
from model.ops.fused_cpu import IGNORED
from model.ops.keyed_dropout import DropoutKey
from model.tokenizer.wordpiece import Vocabulary


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

    def to(self, device: torch.device) -> PretrainBatch:
        """The same batch on `device`; from a CPU to a GPU the copies overlap with the GPU's work."""
        if device.type == "cpu":
            return self
        return PretrainBatch(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in self))


class Counts(NamedTuple):
    """Totals of a step over all ranks."""

    num_sequences: int
    """Sequences."""
    num_predictions: int
    """Masked positions."""
    num_tokens: int
    """Tokens, special ones counted, padding not."""


@numba.njit(cache=True, nogil=True)
def _put(tokens: np.ndarray, start: Integer, count: Integer, ids: np.ndarray, at: Integer, places: np.ndarray) -> None:
    """Copy `count` tokens to the positions from `at`, and write these positions to the front of `places`."""
    # Indices that cannot be negative, and one output in each loop: otherwise nothing is vectorized.
    into, source = ids[at : at + count], tokens[start : start + count]
    for index in range(count):
        into[index] = source[index]
    for index in range(count):
        places[index] = at + index


@numba.njit(cache=True, nogil=True)
def lay_out_pair(
    tokens: np.ndarray,
    first_start: Integer,
    first_length: Integer,
    second_start: Integer,
    second_length: Integer,
    cls_id: int,
    sep_id: int,
    ids: np.ndarray,
    token_types: np.ndarray,
    places: np.ndarray,
) -> None:
    """Write [CLS] A [SEP] B [SEP] to `ids`, 1 for B [SEP] to `token_types`, the positions of A and B to `places`."""
    ids[0] = cls_id
    _put(tokens, first_start, first_length, ids, 1, places)
    ids[1 + first_length] = sep_id
    at = 2 + first_length
    _put(tokens, second_start, second_length, ids, at, places[first_length : first_length + second_length])
    ids[at + second_length] = sep_id
    token_types[at : at + second_length + 1] = 1


@numba.njit(cache=True, nogil=True)
def lay_out_packed_row(
    tokens: np.ndarray,
    sentence_offsets: np.ndarray,
    document_offsets: np.ndarray,
    start: Integer,
    count: Integer,
    cls_id: int,
    sep_id: int,
    ids: np.ndarray,
    segment_starts: np.ndarray,
    places: np.ndarray,
) -> None:
    """Write [CLS] segment [SEP] [CLS] segment [SEP] ... to `ids`: `count` tokens from `start`, split at document ends.

    The positions of the tokens are written to `places`. `segment_starts` receives, for every position, the position of
    its segment's [CLS]; padding is a segment, too.
    """
    document = document_at(start, sentence_offsets, document_offsets)
    at, done = 0, 0
    while done < count:
        document += 1
        taken = min(count - done, sentence_offsets[document_offsets[document]] - start - done)
        ids[at] = cls_id
        _put(tokens, start + done, taken, ids, at + 1, places[done:])
        ids[at + 1 + taken] = sep_id
        segment_starts[at : at + taken + 2] = at
        at += taken + 2
        done += taken
    segment_starts[at:] = at


class TokenSource(NamedTuple):
    """The token store and the special tokens, as compiled functions read them."""

    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    is_packed: bool
    cls_id: int
    sep_id: int


@numba.njit(cache=True, nogil=True)
def lay_out(
    source: Any,
    columns: Any,
    row: int,
    ids: np.ndarray,
    token_types: np.ndarray,
    segment_starts: np.ndarray,
    scratch: np.ndarray,
) -> np.ndarray:
    """Write sample `row` of `columns` (see `Samples`) to one row of each array; returns the positions that may be
    masked."""
    first_start, first_length, second_start, second_length = columns[0], columns[1], columns[2], columns[3]
    if source.is_packed:
        lay_out_packed_row(
            source.tokens, source.sentence_offsets, source.document_offsets, first_start[row], first_length[row],
            source.cls_id, source.sep_id, ids, segment_starts, scratch,
        )  # fmt: skip
    else:
        lay_out_pair(
            source.tokens, first_start[row], first_length[row], second_start[row], second_length[row],
            source.cls_id, source.sep_id, ids, token_types, scratch,
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
        places = lay_out(source, columns, row, input_ids[row], token_type_ids[row], segment_starts[row], scratch)
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
    ids, token_types, segment_starts, scratch = np.empty((4, sequence_length), dtype=np.int64)
    total = 0
    for row in range(len(lengths)):
        places = lay_out(source, columns, row, ids, token_types, segment_starts, scratch)
        key = fold(mask_key, np.uint64(first_sample + row))
        total += count_in_words(ids, places, lengths[row], key, rate, limit, is_continuation)
    return total


class Targets(ABC):
    """What is predicted of each sample, as a function of (seed, sample): a pre-training objective supplies it.

    Args:
        masking: shares and limits of the recipe.
        vocabulary: special tokens and word pieces.
        length: length of the rows.
        vocab_size: number of token ids.
        seed: seed of the run.
    """

    def __init__(self, masking: Masking, vocabulary: Vocabulary, length: int, vocab_size: int, seed: int) -> None:
        self.rate = masking.rate
        limit = length if masking.max_predictions is None else masking.max_predictions
        self.max_predictions = num_predictions(length, masking.rate, limit)
        self.length, self.vocab_size, self.vocabulary = length, vocab_size, vocabulary
        self.key = np.uint64(Key(seed).for_(Domain.MASK))

    def count(self, source: TokenSource, samples: Samples, first_sample: int) -> int:
        """Return the number of predictions of all samples, which every rank computes on its own.

        By default each sample has `num_predictions` of its length, or fewer if it has fewer ordinary tokens.
        """
        lengths = samples.lengths
        wanted = np.clip(np.rint(self.rate * lengths), 1, self.max_predictions).astype(np.int64)
        return int(np.minimum(wanted, lengths - samples.num_specials).sum())

    @abstractmethod
    def fill(
        self,
        source: TokenSource,
        samples: Samples,
        first_sample: int,
        input_ids: np.ndarray,
        token_type_ids: np.ndarray,
        segment_starts: np.ndarray,
        positions: np.ndarray,
        labels: np.ndarray,
    ) -> None:
        """Lay out the samples (see `lay_out`), corrupt the inputs, and write positions and labels, in place.

        Args:
            first_sample: global number of the first sample; the key of sample n is fold(key, n).
            input_ids: (batch, length), filled with padding.
            token_type_ids: (batch, length), zeros.
            segment_starts: (batch, length) for packed rows, else (batch, 0).
            positions: (batch, 1 + max_predictions), zeros; column 0 stays [CLS].
            labels: (batch, max_predictions), IGNORED.
        """


class MaskedTokens(Targets):
    """Masked language modeling (Devlin et al. 2019, section 3.1), with or without whole words."""

    def __init__(self, masking: Masking, vocabulary: Vocabulary, length: int, vocab_size: int, seed: int) -> None:
        super().__init__(masking, vocabulary, length, vocab_size, seed)
        self._rates = np.array([masking.rate, masking.mask, masking.random])
        self._is_continuation = vocabulary.is_continuation if masking.whole_words else np.zeros(0, dtype=bool)

    def count(self, source: TokenSource, samples: Samples, first_sample: int) -> int:
        """Return the number of masked tokens; whole-word masking has to look at the words of all samples."""
        if not len(self._is_continuation):
            return super().count(source, samples, first_sample)
        given = source, samples.columns(), samples.lengths, first_sample, self.key, self.rate, self.max_predictions
        return int(_count_in_words(*given, self._is_continuation, self.length))

    def fill(self, source: TokenSource, samples: Samples, first_sample: int, *arrays: np.ndarray) -> None:
        """Replace the chosen tokens by [MASK], a random token or themselves."""
        given = source, samples.columns(), samples.lengths, first_sample, self.key, self._rates
        _fill(*given, self.vocabulary.specials.mask, self.vocab_size, self._is_continuation, *arrays)


class Collator:
    """Builds the batches of one phase (or of validation).

    Args:
        sampler: the samples.
        store: the token store that the samples refer to.
        sequence_length: length of the rows.
        first_sample: global number of the sampler's sample 0.
        masking: masking rates.
        vocabulary: special tokens and word pieces.
        seed: seed of masks and dropout.
        num_dropouts: dropout layers of the encoder; 0 for no dropout.
        unpadding: the way in which padding is left out; None keeps it.
        targets: the predictions of a sample.
    """

    def __init__(
        self,
        sampler: EpochSampler,
        store: TokenStore,
        sequence_length: int,
        first_sample: int,
        masking: Masking,
        vocabulary: Vocabulary,
        seed: int,
        num_dropouts: int,
        unpadding: Unpadding | None = None,
        targets: type[Targets] = MaskedTokens,
    ) -> None:
        self._sampler = sampler
        self._length = sequence_length
        self._first_sample = first_sample
        self._targets = targets(masking, vocabulary, sequence_length, store.vocab_size, seed)
        self.max_predictions = self._targets.max_predictions
        self._specials = vocabulary.specials
        self._seed = seed
        self._num_dropouts = num_dropouts
        self._unpadding = unpadding
        self._is_packed = sampler.objective == "none"
        self._source = TokenSource(
            store.tokens,
            store.sentence_offsets,
            store.document_offsets,
            self._is_packed,
            self._specials.cls,
            self._specials.sep,
        )

    def samples(self, first: int, count: int) -> Samples:
        """Samples `first` to `first + count - 1` of the phase."""
        return self._sampler.samples(first, count)

    def counts(self, samples: Samples, first: int) -> Counts:
        """Totals of a step over `samples`, of which the first is number `first` of the phase.

        Every rank computes them on its own.
        """
        num_targets = self._targets.count(self._source, samples, self._first_sample + first)
        return Counts(len(samples), num_targets, int(samples.lengths.sum()))

    def build(self, samples: Samples, first: int, step: int) -> PretrainBatch:
        """The batch of `samples`, of which the first is number `first` of the phase, at optimizer step `step`."""
        batch, length, most = len(samples), self._length, self.max_predictions
        input_ids = np.full((batch, length), self._specials.pad, dtype=np.int64)
        token_type_ids = np.zeros((batch, length), dtype=np.int64)
        segment_starts = np.zeros((batch, length if self._is_packed else 0), dtype=np.int64)
        positions = np.zeros((batch, 1 + most), dtype=np.int64)
        labels = np.full((batch, most), IGNORED, dtype=np.int64)
        lengths = samples.lengths
        first_sample = self._first_sample + first
        arrays = input_ids, token_type_ids, segment_starts, positions, labels
        self._targets.fill(self._source, samples, first_sample, *arrays)
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
