"""The epoch sampler: every document is cut into samples once per epoch, in an order that is a function of keys.

Cutting is keyed by (seed, phase, epoch, document), and the order by (seed, phase, epoch). Sample n of a phase is row n
of its concatenated epochs.

Next sentence prediction follows the paper (appendix A.2, and the released create_pretraining_data.py): a chunk of whole
sentences of about the target length is split into A and B; half the time B is replaced by a span of another document
and the unused sentences go back. Sentence order prediction (Lan et al. 2020, arXiv:1909.11942, section 3.1) splits the
same chunks and swaps A and B half the time. One thing differs from the released code: the short target length is drawn
for every pair, not once for a document, so that the short pairs are the 10 % that the paper says also where documents
are long.

Packed rows are filled with pieces of documents, [CLS] segment [SEP] [CLS] segment [SEP] ..., without padding. A row is
a span of the token array, split into segments at document ends. Segments do not attend to each other, and their
positions start from 0, so it does not matter which documents share a row.

The functions are compiled by numba; a test compares them with the same functions in plain Python.
"""

from __future__ import annotations

import numba
import numpy as np

from model.common.rng import Domain, Integer, Key, below, draw, fold, permute_range, unit
from model.config.pretraining import SampleKind
from model.data.token_store import TokenStore

SPECIALS_OF_PAIR = 3  # [CLS] A [SEP] B [SEP]
SPECIALS_OF_SEGMENT = 2  # [CLS] segment [SEP]
LEAST_SEGMENT = 6
"""Smallest segment of a longer document at the end of a row; shorter ones would have hardly any context."""

SAMPLE = np.dtype(
    [
        ("first_start", np.int64),  # start of A, or of the tokens of a packed row
        ("second_start", np.int64),  # start of B; the document that a packed row begins in
        ("first_length", np.int32),  # tokens of A, or of all segments of a packed row
        ("second_length", np.int32),  # tokens of B; 0 in a packed row
        ("length", np.int32),  # tokens of the sequence, [CLS] and [SEP] counted
        ("pair_label", np.uint8),  # 1 if B comes from another document (NotNext), or A and B are swapped
    ],
    align=True,
)
"""A sample as spans of the token array."""
_NO_SAMPLES = np.zeros(0, SAMPLE)

Offsets = tuple[np.ndarray, np.ndarray]
"""The sentence offsets and document offsets of a token store."""

_ONE, _TWO = np.uint64(1), np.uint64(2)


@numba.njit(cache=True, nogil=True)
def _target(key: Integer, turn: Integer, max_tokens: int, short_probability: float) -> Integer:
    """The length to fill, from draws `turn` and `turn + 1`: `max_tokens`, or with a small probability a shorter one."""
    if unit(draw(key, turn)) < short_probability:
        return 2 + below(draw(key, turn + _ONE), max_tokens - 1)
    return np.int64(max_tokens)


@numba.njit(cache=True, nogil=True, forceinline=True)
def _next_sentence_pair(
    document: Integer, sentence: Integer, target: Integer, offsets: Offsets, key: Integer, turn: Integer
) -> tuple[Integer, ...]:
    """The pair of the chunk that begins at `sentence`: begin and end of A and of B, class, next sentence, next turn."""
    sentence_offsets, document_offsets = offsets
    last, end = document_offsets[document + 1], sentence
    while end < last and sentence_offsets[end] - sentence_offsets[sentence] < target:
        end += 1
    num_sentences = end - sentence
    split = sentence + 1
    if num_sentences > 1:
        split += below(draw(key, turn), num_sentences - 1)
    turn += _ONE
    a_start, a_end = sentence_offsets[sentence], sentence_offsets[split]
    is_random = num_sentences == 1 or unit(draw(key, turn)) < 0.5
    turn += _ONE
    if not is_random:
        return a_start, a_end, a_end, sentence_offsets[end], is_random, end, turn
    other = below(draw(key, turn), len(document_offsets) - 2)
    if other >= document:
        other += 1
    turn += _ONE
    begin = document_offsets[other]
    begin += below(draw(key, turn), document_offsets[other + 1] - begin)
    turn += _ONE
    stop = begin + 1
    wanted = target - (a_end - a_start)
    while stop < document_offsets[other + 1] and sentence_offsets[stop] - sentence_offsets[begin] < wanted:
        stop += 1
    # The sentences after A are used again.
    return a_start, a_end, sentence_offsets[begin], sentence_offsets[stop], is_random, split, turn


@numba.njit(cache=True, nogil=True, forceinline=True)
def _sentence_order_pair(
    document: Integer, sentence: Integer, target: Integer, offsets: Offsets, key: Integer, turn: Integer
) -> tuple[Integer, ...]:
    """The pair of adjacent spans, before swapping; arguments and result as `_next_sentence_pair`.

    A chunk has at least two sentences, so that A and B are whole sentences: a second one is added however long the
    first is, and a single remaining sentence at the end of the document joins the last chunk (the excess is truncated).
    Pairs split within a sentence would test syntax rather than coherence. Only a document of one sentence is split
    within it; B is empty if that is a single token.
    """
    sentence_offsets, document_offsets = offsets
    last = document_offsets[document + 1]
    end = min(sentence + 2, last)
    while end < last and sentence_offsets[end] - sentence_offsets[sentence] < target:
        end += 1
    if last - end == 1:
        end = last
    start, stop = sentence_offsets[sentence], sentence_offsets[end]
    if end - sentence > 1:
        middle = sentence_offsets[sentence + 1 + below(draw(key, turn), end - sentence - 1)]
    else:
        middle = start + 1 + below(draw(key, turn), stop - start - 1)
    is_swapped = unit(draw(key, turn + _ONE)) < 0.5
    return start, middle, middle, stop, is_swapped, end, turn + _TWO


@numba.njit(cache=True, nogil=True, forceinline=True)
def _fit(
    a_start: Integer, a_end: Integer, b_start: Integer, b_end: Integer, max_tokens: int, key: Integer, turn: Integer
) -> tuple[Integer, Integer, Integer, Integer, Integer]:
    """Truncate the longer span at its front or back until both fit; returns the spans and the next turn."""
    bits, left = np.uint64(0), 0
    while (a_end - a_start) + (b_end - b_start) > max_tokens:
        if left == 0:
            bits, left = draw(key, turn), 64
            turn += _ONE
        front = (bits & _ONE) == _ONE
        bits >>= _ONE
        left -= 1
        if a_end - a_start > b_end - b_start:
            if front:
                a_start += 1
            else:
                a_end -= 1
        elif front:
            b_start += 1
        else:
            b_end -= 1
    return a_start, a_end, b_start, b_end, turn


@numba.njit(cache=True, nogil=True)
def _cut_documents(
    key: Integer, offsets: Offsets, in_order: bool, max_tokens: int, short_probability: float, samples: np.ndarray
) -> int:
    """Cut all documents into pairs, for sentence order prediction if `in_order`; see `_pack_documents`."""
    document_offsets, count = offsets[1], 0
    for document in range(len(document_offsets) - 1):
        own, turn, sentence = fold(key, np.uint64(document)), np.uint64(0), document_offsets[document]
        while sentence < document_offsets[document + 1]:
            target = _target(own, turn, max_tokens, short_probability)
            turn += _TWO
            if in_order:
                pair = _sentence_order_pair(document, sentence, target, offsets, own, turn)
            else:
                pair = _next_sentence_pair(document, sentence, target, offsets, own, turn)
            a_start, a_end, b_start, b_end, label, sentence, turn = pair
            if b_start == b_end:
                continue
            a_start, a_end, b_start, b_end, turn = _fit(a_start, a_end, b_start, b_end, max_tokens, own, turn)
            if in_order and label:
                a_start, a_end, b_start, b_end = b_start, b_end, a_start, a_end
            if count < len(samples):
                sample = samples[count]
                sample["first_start"], sample["first_length"] = a_start, a_end - a_start
                sample["second_start"], sample["second_length"] = b_start, b_end - b_start
                sample["length"] = (a_end - a_start) + (b_end - b_start) + SPECIALS_OF_PAIR
                sample["pair_label"] = label
            count += 1
    return count


@numba.njit(cache=True, nogil=True)
def _pack_documents(key: Integer, offsets: Offsets, sequence_length: int, samples: np.ndarray) -> int:
    """Cut all tokens into rows of `sequence_length`; write as many as `samples` holds, and count all.

    The first row of an epoch has a random length, from `LEAST_SEGMENT` and its special tokens on, so that all borders
    differ between epochs.
    """
    sentence_offsets, document_offsets = offsets
    at, document, count = sentence_offsets[0], 0, 0
    least = LEAST_SEGMENT + SPECIALS_OF_SEGMENT
    room = least + below(draw(key, np.uint64(0)), sequence_length - least + 1)
    while at < sentence_offsets[-1]:
        begin, begins_in, specials = at, document, 0
        while at < sentence_offsets[-1]:
            left = sentence_offsets[document_offsets[document + 1]] - at
            if room - SPECIALS_OF_SEGMENT < min(left, LEAST_SEGMENT):
                break
            taken = min(left, room - SPECIALS_OF_SEGMENT)
            at += taken
            room -= taken + SPECIALS_OF_SEGMENT
            specials += SPECIALS_OF_SEGMENT
            if taken == left:
                document += 1
        if count < len(samples):
            sample = samples[count]
            sample["first_start"], sample["first_length"] = begin, at - begin
            sample["second_start"], sample["length"] = begins_in, at - begin + specials
        count += 1
        room = np.int64(sequence_length)
    return count


def unusable_reason(store: TokenStore, objective: SampleKind) -> str | None:
    """The reason why a part of a token store has no samples; None if it has some."""
    needed = 2 if objective == "next_sentence" else 1
    if store.num_documents < needed:
        reason = "; next sentence prediction draws from other documents" if needed == 2 else ""
        return f"{store.num_documents} documents, expected at least {needed}{reason}"
    if objective == "sentence_order" and store.num_tokens == store.num_documents:
        return "only documents of one token, expected one with two spans to put in order"
    return None


class EpochSampler:
    """The samples of one part of a token store by number, epoch after epoch.

    Args:
        store: a usable token store (see `unusable_reason`).
        sequence_length: tokens of a sequence, including special tokens.
        objective: kind of samples: sentence pairs or packed rows.
        short_probability: share of pairs with a shorter target; packed rows are always full.
        keys: (seed, phase), or (seed,).
    """

    def __init__(
        self,
        store: TokenStore,
        sequence_length: int,
        *,
        objective: SampleKind,
        short_probability: float,
        keys: tuple[int, ...],
    ) -> None:
        lack = unusable_reason(store, objective)
        assert lack is None, lack
        self.store, self.sequence_length, self.objective = store, sequence_length, objective
        self._short_probability = short_probability
        self._key, self._numbers = Key(keys[0]), keys[1:]
        self._samples: np.ndarray | None = None  # of the epoch; cut when they are first needed
        self._start(0, 0)

    def samples(self, first: int, count: int) -> np.ndarray:
        """(count,) `SAMPLE`: number `first` to `first + count - 1`, which may span several epochs."""
        parts = []
        while count:
            self._go_to(first)
            samples = self._samples
            if samples is None:
                samples = self._samples = np.zeros(self._size, SAMPLE)
                self._cut(self._epoch, samples)
            here = min(count, self._first + self._size - first)
            order = np.uint64(self._key.for_(Domain.SAMPLE_ORDER, *self._numbers, self._epoch))
            parts.append(samples.take(permute_range(first - self._first, here, self._size, order)))
            first, count = first + here, count - here
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def epoch_size(self, epoch: int) -> int:
        """Samples of one epoch."""
        return self._size if epoch == self._epoch else self._cut(epoch)

    def _go_to(self, sample: int) -> None:
        if sample < self._first:
            self._start(0, 0)
        while sample >= self._first + self._size:
            self._start(self._epoch + 1, self._first + self._size)

    def _start(self, epoch: int, first: int) -> None:
        """Go to an epoch whose first sample is number `first`."""
        self._epoch, self._first, self._size, self._samples = epoch, first, self._cut(epoch), None

    def _cut(self, epoch: int, samples: np.ndarray = _NO_SAMPLES) -> int:
        """Cut all documents, write as many samples as `samples` holds, and count all."""
        key = np.uint64(self._key.for_(Domain.SAMPLER, *self._numbers, epoch))
        offsets, length = (self.store.sentence_offsets, self.store.document_offsets), self.sequence_length
        if self.objective == "none":
            return _pack_documents(key, offsets, length, samples)
        in_order = self.objective == "sentence_order"
        return _cut_documents(key, offsets, in_order, length - SPECIALS_OF_PAIR, self._short_probability, samples)
