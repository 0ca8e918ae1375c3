"""Epoch plans: every document cut once into pairs of spans, in an order that is a function of keys.

A plan follows the paper's pre-training data (appendix A.2, and the released create_pretraining_data.py): a chunk of
whole sentences of about the target length is split into A and B; half the time B is replaced by a span of another
document and the unused sentences go back. The generator is keyed by (seed, epoch, document), the permutation by (seed,
epoch); sample n of a phase is row n of its epochs one after another.

One thing differs from the released code: the short target length is drawn for every pair, not once for a document, so
that the short pairs are the 10 % that the paper says also where documents are long.

Written for numba; without it (`.py_func`) the same functions are plain Python, which the tests take as reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from model.counter import Integer, below, draw, fold, key_of, unit
from model.permutation import permute_range
from model.token_store import TokenStore

SPECIALS_OF_PAIR = 3  # [CLS] A [SEP] B [SEP]
SPECIALS_OF_SPAN = 2  # [CLS] A [SEP]


@dataclass(frozen=True)
class Spans:
    """Samples as places in the token array; all (num_samples,)."""

    first_start: np.ndarray
    """int64, where A starts."""
    first_length: np.ndarray
    """int32, tokens of A."""
    second_start: np.ndarray
    """int64, where B starts."""
    second_length: np.ndarray
    """int32, tokens of B; 0 without next sentence prediction."""
    not_next: np.ndarray
    """uint8, 1 where B comes from another document (the class NotNext)."""

    def __len__(self) -> int:
        return len(self.first_start)

    def take(self, rows: np.ndarray) -> Spans:
        """The samples at `rows`."""
        return Spans(*(column[rows] for column in self.columns()))

    def slice(self, begin: int, end: int) -> Spans:
        """Samples `begin` to `end - 1`."""
        return Spans(*(column[begin:end] for column in self.columns()))

    def columns(self) -> tuple[np.ndarray, ...]:
        """The five arrays in the order of their declaration."""
        return self.first_start, self.first_length, self.second_start, self.second_length, self.not_next

    @property
    def lengths(self) -> np.ndarray:
        """(num_samples,) int64: tokens of each sequence, special ones counted."""
        specials = np.where(self.second_length > 0, SPECIALS_OF_PAIR, SPECIALS_OF_SPAN)
        return self.first_length.astype(np.int64) + self.second_length + specials


def empty_spans(num_samples: int) -> Spans:
    """Room for `num_samples` samples."""
    dtypes = (np.int64, np.int32, np.int64, np.int32, np.uint8)
    return Spans(*(np.zeros(num_samples, dtype=dtype) for dtype in dtypes))


@numba.njit(cache=True, nogil=True)
def cut_into_pairs(
    document: Integer,
    key: Integer,
    sentence_offsets: np.ndarray,
    document_offsets: np.ndarray,
    max_tokens: int,
    short_probability: float,
    filling: bool,
    at: int,
    first_start: np.ndarray,
    first_length: np.ndarray,
    second_start: np.ndarray,
    second_length: np.ndarray,
    not_next: np.ndarray,
) -> Integer:
    """Cut one document into pairs of at most `max_tokens`; write them from row `at` on if `filling`; count them."""
    num_documents = len(document_offsets) - 1
    last = document_offsets[document + 1]
    sentence = document_offsets[document]
    count, turn = 0, np.uint64(0)
    one = np.uint64(1)
    while sentence < last:
        target = max_tokens
        luck = draw(key, turn)
        turn += one
        if unit(luck) < short_probability:
            target = 2 + below(draw(key, turn), max_tokens - 1)
        turn += one
        end = sentence
        while end < last and sentence_offsets[end] - sentence_offsets[sentence] < target:
            end += 1
        num_sentences = end - sentence
        split = sentence + 1
        if num_sentences > 1:
            split += below(draw(key, turn), num_sentences - 1)
        turn += one
        a_start, a_end = sentence_offsets[sentence], sentence_offsets[split]
        is_random = num_sentences == 1 or unit(draw(key, turn)) < 0.5
        turn += one
        if is_random:
            other = below(draw(key, turn), num_documents - 1)
            if other >= document:
                other += 1
            turn += one
            begin = document_offsets[other]
            begin += below(draw(key, turn), document_offsets[other + 1] - begin)
            turn += one
            stop = begin + 1
            wanted = target - (a_end - a_start)
            while stop < document_offsets[other + 1] and sentence_offsets[stop] - sentence_offsets[begin] < wanted:
                stop += 1
            b_start, b_end = sentence_offsets[begin], sentence_offsets[stop]
            sentence = split  # what follows A goes back
        else:
            b_start, b_end = a_end, sentence_offsets[end]
            sentence = end
        # Too long: take a token off the longer span, from its front or its back, until it fits.
        bits, left = np.uint64(0), 0
        while (a_end - a_start) + (b_end - b_start) > max_tokens:
            if left == 0:
                bits, left = draw(key, turn), 64
                turn += one
            front = (bits & one) == one
            bits >>= one
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
        if filling:
            row = at + count
            first_start[row], first_length[row] = a_start, a_end - a_start
            second_start[row], second_length[row] = b_start, b_end - b_start
            not_next[row] = is_random
        count += 1
    return count


@numba.njit(cache=True, nogil=True)
def cut_into_spans(
    document: Integer,
    key: Integer,
    sentence_offsets: np.ndarray,
    document_offsets: np.ndarray,
    max_tokens: int,
    short_probability: float,
    filling: bool,
    at: int,
    first_start: np.ndarray,
    first_length: np.ndarray,
) -> Integer:
    """Cut one document into consecutive spans, the first of random length so that borders differ between epochs."""
    start = sentence_offsets[document_offsets[document]]
    end = sentence_offsets[document_offsets[document + 1]]
    count, turn = 0, np.uint64(0)
    one = np.uint64(1)
    while start < end:
        length = max_tokens
        if count == 0 and end - start > max_tokens:
            length = 1 + below(draw(key, turn), max_tokens)
        elif unit(draw(key, turn + one)) < short_probability:
            length = 2 + below(draw(key, turn + one + one), max_tokens - 1)
        turn += np.uint64(3)
        length = min(length, end - start)
        if filling:
            first_start[at + count], first_length[at + count] = start, length
        start += length
        count += 1
    return count


@numba.njit(cache=True, nogil=True)
def _plan(
    key: Integer,
    sentence_offsets: np.ndarray,
    document_offsets: np.ndarray,
    pairs: bool,
    max_tokens: int,
    short_probability: float,
    filling: bool,
    first_start: np.ndarray,
    first_length: np.ndarray,
    second_start: np.ndarray,
    second_length: np.ndarray,
    not_next: np.ndarray,
) -> int:
    total = 0
    for document in range(len(document_offsets) - 1):
        own = fold(key, np.uint64(document))
        if pairs:
            total += cut_into_pairs(
                document, own, sentence_offsets, document_offsets, max_tokens, short_probability, filling, total,
                first_start, first_length, second_start, second_length, not_next,
            )  # fmt: skip
        else:
            total += cut_into_spans(
                document, own, sentence_offsets, document_offsets, max_tokens, short_probability, filling, total,
                first_start, first_length,
            )  # fmt: skip
    return total


class EpochPlans:
    """The samples of a part of a token store, epoch after epoch, by their number.

    Args:
        store: the tokens; with `pairs` it holds at least two documents.
        sequence_length: tokens of a sequence, special ones counted.
        pairs: two spans (next sentence prediction) or one.
        short_probability: share of the shorter targets.
        keys: numbers that key the plans (seed, phase).
    """

    def __init__(
        self, store: TokenStore, sequence_length: int, *, pairs: bool, short_probability: float, keys: tuple[int, ...]
    ) -> None:
        assert store.num_documents >= (2 if pairs else 1), "too few documents for a plan"
        self._store = store
        self._pairs = pairs
        self._max_tokens = sequence_length - (SPECIALS_OF_PAIR if pairs else SPECIALS_OF_SPAN)
        self._short_probability = short_probability
        self._keys = keys
        self._epoch = 0
        self._first = 0  # the number of the first sample of the epoch
        self._size = self._count(0)
        self._spans: Spans | None = None

    def epoch_of(self, sample: int) -> tuple[int, int]:
        """The epoch of sample number `sample`, and its number within it."""
        self._go_to(sample)
        return self._epoch, sample - self._first

    def spans(self, first: int, count: int) -> Spans:
        """Samples `first` to `first + count - 1`, across epochs where need be."""
        parts = []
        while count:
            self._go_to(first)
            if self._spans is None:
                self._spans = self._fill(self._epoch)
            here = min(count, self._first + self._size - first)
            order = np.uint64(key_of(*self._keys, self._epoch, 1))
            parts.append(self._spans.take(permute_range(first - self._first, here, self._size, order)))
            first, count = first + here, count - here
        if len(parts) == 1:
            return parts[0]
        return Spans(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts))))

    def epoch_size(self, epoch: int) -> int:
        """Samples of one epoch."""
        return self._size if epoch == self._epoch else self._count(epoch)

    def _go_to(self, sample: int) -> None:
        if sample < self._first:
            self._epoch, self._first, self._size, self._spans = 0, 0, self._count(0), None
        while sample >= self._first + self._size:
            self._first += self._size
            self._epoch += 1
            self._size, self._spans = self._count(self._epoch), None

    def _count(self, epoch: int) -> int:
        return self._run(epoch, filling=False, spans=empty_spans(0))

    def _fill(self, epoch: int) -> Spans:
        spans = empty_spans(self._size)
        self._run(epoch, filling=True, spans=spans)
        return spans

    def _run(self, epoch: int, filling: bool, spans: Spans) -> int:
        return _plan(
            np.uint64(key_of(*self._keys, epoch, 0)),
            self._store.sentence_offsets,
            self._store.document_offsets,
            self._pairs,
            self._max_tokens,
            self._short_probability,
            filling,
            *spans.columns(),
        )
