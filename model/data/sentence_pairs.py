"""Pairs of spans: how a document is cut into the samples of the sentence objectives, once each epoch.

Next sentence prediction follows the paper (appendix A.2, and the released create_pretraining_data.py): a chunk of whole
sentences of about the target length is split into A and B; half the time B is replaced by a span of another document
and the unused sentences go back. Sentence order prediction (Lan et al. 2020, arXiv:1909.11942, section 3.1) splits the
same chunks and swaps A and B half the time.

One thing differs from the released code: the short target length is drawn for every pair, not once for a document, so
that the short pairs are the 10 % that the paper says also where documents are long.

The functions are compiled by numba; the tests compare them with the same functions in plain Python (`.py_func`).
"""

from __future__ import annotations

import numba
import numpy as np

from model.common.rng import Integer, below, draw, fold, unit

SPECIALS_OF_PAIR = 3  # [CLS] A [SEP] B [SEP]

_ONE, _TWO = np.uint64(1), np.uint64(2)


@numba.njit(cache=True, nogil=True)
def _target(key: Integer, turn: Integer, max_tokens: int, short_probability: float) -> Integer:
    """The length to fill, from draws `turn` and `turn + 1`: `max_tokens`, or with a small probability a shorter one."""
    if unit(draw(key, turn)) < short_probability:
        return 2 + below(draw(key, turn + _ONE), max_tokens - 1)
    return np.int64(max_tokens)


@numba.njit(cache=True, nogil=True)
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
def cut_for_next_sentence(
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
    pair_label: np.ndarray,
) -> Integer:
    """Cut one document into pairs of at most `max_tokens`; write them from row `at` on if `filling`; count them."""
    num_documents = len(document_offsets) - 1
    last = document_offsets[document + 1]
    sentence = document_offsets[document]
    count, turn = 0, np.uint64(0)
    while sentence < last:
        target = _target(key, turn, max_tokens, short_probability)
        turn += _TWO
        end = sentence
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
        if is_random:
            other = below(draw(key, turn), num_documents - 1)
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
            b_start, b_end = sentence_offsets[begin], sentence_offsets[stop]
            sentence = split  # the sentences after A are used again
        else:
            b_start, b_end = a_end, sentence_offsets[end]
            sentence = end
        a_start, a_end, b_start, b_end, turn = _fit(a_start, a_end, b_start, b_end, max_tokens, key, turn)
        if filling:
            row = at + count
            first_start[row], first_length[row] = a_start, a_end - a_start
            second_start[row], second_length[row] = b_start, b_end - b_start
            pair_label[row] = is_random
        count += 1
    return count


@numba.njit(cache=True, nogil=True)
def cut_for_sentence_order(
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
    pair_label: np.ndarray,
) -> Integer:
    """Cut one document into pairs of adjacent spans, half of them swapped; arguments as `cut_for_next_sentence`.

    A chunk has at least two sentences, so that A and B are whole sentences: a second one is added however long the
    first is, and a single remaining sentence at the end of the document joins the last chunk (the excess is truncated).
    Pairs split within a sentence would test syntax rather than coherence. Only a document of one sentence is split
    within it; a document of one token has no pairs.
    """
    last = document_offsets[document + 1]
    sentence = document_offsets[document]
    count, turn = 0, np.uint64(0)
    while sentence < last:
        target = _target(key, turn, max_tokens, short_probability)
        turn += _TWO
        end = min(sentence + 2, last)
        while end < last and sentence_offsets[end] - sentence_offsets[sentence] < target:
            end += 1
        if last - end == 1:
            end = last
        a_start, b_end = sentence_offsets[sentence], sentence_offsets[end]
        if b_end - a_start == 1:
            break
        if end - sentence > 1:
            a_end = sentence_offsets[sentence + 1 + below(draw(key, turn), end - sentence - 1)]
        else:
            a_end = a_start + 1 + below(draw(key, turn), b_end - a_start - 1)
        is_swapped = unit(draw(key, turn + _ONE)) < 0.5
        turn += _TWO
        a_start, a_end, b_start, b_end, turn = _fit(a_start, a_end, a_end, b_end, max_tokens, key, turn)
        if filling:
            row = at + count
            if is_swapped:
                a_start, a_end, b_start, b_end = b_start, b_end, a_start, a_end
            first_start[row], first_length[row] = a_start, a_end - a_start
            second_start[row], second_length[row] = b_start, b_end - b_start
            pair_label[row] = is_swapped
        sentence = end
        count += 1
    return count


@numba.njit(cache=True, nogil=True)
def cut_documents(
    key: Integer,
    sentence_offsets: np.ndarray,
    document_offsets: np.ndarray,
    in_order: bool,
    max_tokens: int,
    short_probability: float,
    filling: bool,
    first_start: np.ndarray,
    first_length: np.ndarray,
    second_start: np.ndarray,
    second_length: np.ndarray,
    pair_label: np.ndarray,
) -> int:
    """Cut all documents, for sentence order prediction if `in_order`; write the pairs if `filling`; count them."""
    total = 0
    for document in range(len(document_offsets) - 1):
        own = fold(key, np.uint64(document))
        if in_order:
            total += cut_for_sentence_order(
                document, own, sentence_offsets, document_offsets, max_tokens, short_probability, filling, total,
                first_start, first_length, second_start, second_length, pair_label,
            )  # fmt: skip
        else:
            total += cut_for_next_sentence(
                document, own, sentence_offsets, document_offsets, max_tokens, short_probability, filling, total,
                first_start, first_length, second_start, second_length, pair_label,
            )  # fmt: skip
    return total
