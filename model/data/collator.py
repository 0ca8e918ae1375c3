"""The collator of pre-training: builds the arrays of a batch from its samples.

One compiled pass lays out and masks a batch in microseconds. Batches are therefore built between two steps on the
training thread, without workers or queues, and the number of the next sample is the only state. On a GPU this overlaps
with computation.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from model.common.rng import Domain, Integer, Key, fold
from model.config.pretraining import Masking
from model.data.masking import MaskRules, count_in_words, mask_sample, num_predictions
from model.data.sampler import EpochSampler
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
    num_predictions: int
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
    source: TokenSource,
    sample: np.void,
    ids: np.ndarray,
    token_types: np.ndarray,
    segment_starts: np.ndarray,
    scratch: np.ndarray,
) -> np.ndarray:
    """Write a sample to one row of each array; return the positions that may be masked, as a part of `scratch`.

    A pair is [CLS] A [SEP] B [SEP], with 1 for B [SEP] in `token_types`. A packed row is [CLS] segment [SEP] [CLS]
    segment [SEP] ..., split at document ends; `segment_starts` receives, for every position, the position of its
    segment's [CLS], where padding is a segment, too.
    """
    tokens, start, length = source.tokens, sample["first_start"], sample["first_length"]
    if not source.is_packed:
        second_length = sample["second_length"]
        ids[0] = source.cls_id
        _put(tokens, start, length, ids, 1, scratch)
        ids[1 + length] = source.sep_id
        at = 2 + length
        _put(tokens, sample["second_start"], second_length, ids, at, scratch[length : length + second_length])
        ids[at + second_length] = source.sep_id
        token_types[at : at + second_length + 1] = 1
        return scratch[: length + second_length]
    document, at, done = sample["second_start"], 0, 0
    while done < length:
        document += 1
        taken = min(length - done, source.sentence_offsets[source.document_offsets[document]] - start - done)
        ids[at] = source.cls_id
        _put(tokens, start + done, taken, ids, at + 1, scratch[done:])
        ids[at + 1 + taken] = source.sep_id
        segment_starts[at : at + taken + 2] = at
        at += taken + 2
        done += taken
    segment_starts[at:] = at
    return scratch[:length]


@numba.njit(cache=True, nogil=True)
def _fill(
    source: TokenSource,
    samples: np.ndarray,
    first_sample: int,
    mask_key: Integer,
    rules: MaskRules,
    arrays: tuple[np.ndarray, ...],
) -> None:
    input_ids, token_type_ids, segment_starts, positions, labels = arrays
    scratch = np.empty(input_ids.shape[1], dtype=np.int64)
    for row in range(len(samples)):
        sample, ids = samples[row], input_ids[row]
        places = lay_out(source, sample, ids, token_type_ids[row], segment_starts[row], scratch)
        key = fold(mask_key, np.uint64(first_sample + row))
        mask_sample(ids, places, sample["length"], key, rules, positions[row, 1:], labels[row])


@numba.njit(cache=True, nogil=True)
def _count_in_words(
    source: TokenSource,
    samples: np.ndarray,
    first_sample: int,
    mask_key: Integer,
    rules: MaskRules,
    sequence_length: int,
) -> int:
    ids, token_types, segment_starts, scratch = np.empty((4, sequence_length), dtype=np.int64)
    total = 0
    for row in range(len(samples)):
        places = lay_out(source, samples[row], ids, token_types, segment_starts, scratch)
        key = fold(mask_key, np.uint64(first_sample + row))
        total += count_in_words(ids, places, samples[row]["length"], key, rules)
    return total


class Targets:
    """The predicted tokens of each sample, as a function of (seed, sample).

    These are the targets of masked language modeling (Devlin et al. 2019, section 3.1), with or without whole words, in
    rows of `length`. An objective that predicts something else overrides both methods.
    """

    def __init__(self, masking: Masking, vocabulary: Vocabulary, length: int, vocab_size: int, seed: int) -> None:
        limit = length if masking.max_predictions is None else masking.max_predictions
        self.max_predictions = num_predictions(length, masking.rate, limit)
        self.length, self.key = length, np.uint64(Key(seed).for_(Domain.MASK))
        shares, mask_id = (masking.rate, masking.mask, masking.random), vocabulary.specials.mask
        is_continuation = vocabulary.is_continuation if masking.whole_words else np.zeros(0, dtype=bool)
        self.rules = MaskRules(*shares, self.max_predictions, mask_id, vocab_size, is_continuation)

    def count(self, source: TokenSource, samples: np.ndarray, first_sample: int) -> int:
        """Return the number of predictions of all samples, which every rank computes on its own.

        Each sample has `num_predictions` of its length, or fewer if it has fewer ordinary tokens; whole-word masking
        has to look at the words of all samples.
        """
        if len(self.rules.is_continuation):
            return int(_count_in_words(source, samples, first_sample, self.key, self.rules, self.length))
        wanted = np.clip(np.rint(self.rules.rate * samples["length"]), 1, self.max_predictions).astype(np.int64)
        return int(np.minimum(wanted, samples["first_length"] + samples["second_length"]).sum())

    def fill(self, source: TokenSource, samples: np.ndarray, first_sample: int, arrays: tuple[np.ndarray, ...]) -> None:
        """Lay out the samples, corrupt the inputs, and write positions and labels, in place.

        Args:
            first_sample: global number of the first sample; the key of sample n is fold(key, n).
            arrays: input_ids (batch, length), filled with padding; token_type_ids (batch, length), zeros;
                segment_starts (batch, length) for packed rows, else (batch, 0); positions (batch, 1 + max_predictions),
                zeros, whose column 0 stays [CLS]; labels (batch, max_predictions), IGNORED.
        """
        _fill(source, samples, first_sample, self.key, self.rules, arrays)


class Collator:
    """Builds the batches of one phase (or of validation).

    Args:
        seed: seed of masks and dropout.
        num_dropouts: dropout layers of the encoder; 0 for no dropout.
        first_sample: global number of the sampler's sample 0.
        unpadding: the way in which padding is left out; None keeps it.
    """

    def __init__(
        self,
        sampler: EpochSampler,
        vocabulary: Vocabulary,
        masking: Masking,
        seed: int,
        num_dropouts: int,
        *,
        first_sample: int = 0,
        unpadding: Unpadding | None = None,
        targets: type[Targets] = Targets,
    ) -> None:
        store, specials = sampler.store, vocabulary.specials
        self.sampler, self._specials = sampler, specials
        self._first_sample, self._seed, self._num_dropouts = first_sample, seed, num_dropouts
        self._unpadding = unpadding
        self._targets = targets(masking, vocabulary, sampler.sequence_length, store.vocab_size, seed)
        arrays, is_packed = (store.tokens, store.sentence_offsets, store.document_offsets), sampler.objective == "none"
        self._source = TokenSource(*arrays, is_packed, specials.cls, specials.sep)

    def counts(self, samples: np.ndarray, first: int) -> Counts:
        """Totals of a step over `samples`, of which the first is number `first` of the phase.

        Every rank computes them on its own.
        """
        num_targets = self._targets.count(self._source, samples, self._first_sample + first)
        return Counts(len(samples), num_targets, int(samples["length"].sum()))

    def build(self, samples: np.ndarray, first: int, step: int) -> PretrainBatch:
        """The batch of `samples`, of which the first is number `first` of the phase, at optimizer step `step`."""
        batch, length, most = len(samples), self.sampler.sequence_length, self._targets.max_predictions
        input_ids = np.full((batch, length), self._specials.pad, dtype=np.int64)
        token_type_ids = np.zeros((batch, length), dtype=np.int64)
        segment_starts = np.zeros((batch, length if self._source.is_packed else 0), dtype=np.int64)
        positions = np.zeros((batch, 1 + most), dtype=np.int64)
        labels = np.full((batch, most), IGNORED, dtype=np.int64)
        lengths, pair_label = samples["length"].astype(np.int64), samples["pair_label"].astype(np.int64)
        first_sample = self._first_sample + first
        arrays = input_ids, token_type_ids, segment_starts, positions, labels
        self._targets.fill(self._source, samples, first_sample, arrays)
        dropout_key = DropoutKey(self._seed, step, torch.arange(first_sample, first_sample + batch))
        indices, cu_seqlens = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        if self._unpadding is not None and lengths.sum() <= (1 - self._unpadding.least_share) * input_ids.size:
            indices, cu_seqlens = unpad(lengths, segment_starts, length, self._unpadding.granule)
            positions += (np.cumsum(lengths) - lengths)[:, None]
        before = map(torch.from_numpy, (input_ids, token_type_ids, lengths, positions, labels, pair_label))
        after = map(torch.from_numpy, (segment_starts, indices, cu_seqlens))
        return PretrainBatch._make([*before, dropout_key.expand(self._num_dropouts), *after])
