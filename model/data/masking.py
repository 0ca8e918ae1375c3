"""Masked language modeling: the tokens of a sample that are predicted, as a function of (seed, sample).

The functions are compiled by numba; the tests compare them with the same functions in plain Python (`.py_func`).
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from model.common.rng import Integer, below, draw, unit


class MaskRules(NamedTuple):
    """Which tokens are predicted and what replaces them, as compiled functions read it."""

    rate: float
    """Share of the tokens to predict; special tokens count."""
    mask: float
    """Share of the predicted tokens that become [MASK]."""
    random: float
    """Share of the predicted tokens that become a random token."""
    limit: int
    """Most predictions."""
    mask_id: int
    vocab_size: int
    """Random tokens are drawn from all ids, as in the released code."""
    is_continuation: np.ndarray
    """(vocab_size,) bool, the pieces that continue a word, to choose whole words; (0,) to choose each token alone."""


@numba.njit(cache=True, nogil=True)
def num_predictions(length: int, rate: float, limit: int) -> int:
    """Predictions of a sequence: round(rate * length), at least 1 and at most `limit`; special tokens count."""
    return max(1, min(limit, int(np.rint(rate * length))))


@numba.njit(cache=True, nogil=True)
def _choose_tokens(places: np.ndarray, wanted: int, key: Integer) -> Integer:
    """Move `wanted` random elements of `places` to the front, in ascending order; returns `wanted`."""
    for turn in range(wanted):  # a partial Fisher-Yates shuffle: every subset is as likely
        other = turn + below(draw(key, np.uint64(turn)), len(places) - turn)
        picked = places[other]
        places[other] = places[turn]
        before = turn  # sorted as they come: they are few, and numpy's sort takes a second to compile
        while before > 0 and places[before - 1] > picked:
            places[before] = places[before - 1]
            before -= 1
        places[before] = picked
    return wanted


@numba.njit(cache=True, nogil=True)
def _begins_word(index: int, ids: np.ndarray, places: np.ndarray, is_continuation: np.ndarray) -> bool:
    """Check whether a word begins at `places[index]`; no word continues across a special token."""
    return index == 0 or places[index] != places[index - 1] + 1 or not is_continuation[ids[places[index]]]


@numba.njit(cache=True, nogil=True)
def _choose_words(
    ids: np.ndarray, places: np.ndarray, wanted: int, key: Integer, is_continuation: np.ndarray
) -> Integer:
    """Move the pieces of randomly drawn words to the front of `places`, in ascending order; returns their number.

    A word that would exceed `wanted` is skipped, as in the released code. If no word fits, `wanted` pieces of one word
    are chosen, so that every sample has a prediction.
    """
    begins = np.empty(len(places) + 1, dtype=np.int64)
    num_words = 0
    for index in range(len(places)):
        if _begins_word(index, ids, places, is_continuation):
            begins[num_words] = index
            num_words += 1
    begins[num_words] = len(places)
    order = np.arange(num_words)
    is_chosen = np.zeros(len(places), dtype=np.bool_)
    word, chosen = 0, 0
    for turn in range(num_words):
        other = turn + below(draw(key, np.uint64(turn)), num_words - turn)
        word = order[other]
        order[other] = order[turn]
        if chosen + begins[word + 1] - begins[word] <= wanted:
            is_chosen[begins[word] : begins[word + 1]] = True
            chosen += begins[word + 1] - begins[word]
            if chosen == wanted:
                break
    if chosen == 0:
        is_chosen[begins[word] : begins[word] + wanted] = True
        chosen += wanted
    front = 0
    for index in range(len(places)):
        if is_chosen[index]:
            places[front] = places[index]
            front += 1
    return chosen


@numba.njit(cache=True, nogil=True)
def count_in_words(ids: np.ndarray, places: np.ndarray, length: int, key: Integer, rules: MaskRules) -> Integer:
    """Number of tokens that `mask_sample` masks in whole words; same arguments, and `places` may be reordered.

    If a sample has at least as many one-piece words as wanted predictions, the number is exactly `wanted`, because a
    one-piece word always fits. Most samples are therefore read only up to that many such words.
    """
    is_continuation = rules.is_continuation
    wanted = min(num_predictions(length, rules.rate, rules.limit), len(places))
    num_single = 0
    for index in range(len(places)):
        if _begins_word(index, ids, places, is_continuation) and (
            index + 1 == len(places) or _begins_word(index + 1, ids, places, is_continuation)
        ):
            num_single += 1
            if num_single == wanted:
                return np.int64(wanted)
    return _choose_words(ids, places, wanted, key, is_continuation)


@numba.njit(cache=True, nogil=True)
def mask_sample(
    ids: np.ndarray,
    places: np.ndarray,
    length: int,
    key: Integer,
    rules: MaskRules,
    positions: np.ndarray,
    labels: np.ndarray,
) -> Integer:
    """Choose and replace tokens of one sample in place.

    Args:
        ids: (row,) the sequence.
        places: (num_candidates,) the positions of its tokens that are not special, rising; they are reordered.
        length: tokens of the sequence, special ones counted.
        key: the key of (seed, sample).
        positions: (limit,) is filled with the chosen positions in ascending order.
        labels: (limit,) is filled with the original tokens.

    Returns:
        Number of chosen positions; the rest of `positions` and `labels` is not written.
    """
    wanted = min(num_predictions(length, rules.rate, rules.limit), len(places))
    if len(rules.is_continuation) > 0:
        chosen = _choose_words(ids, places, wanted, key, rules.is_continuation)
    else:
        chosen = _choose_tokens(places, wanted, key)
    for turn in range(chosen):  # drawn for each piece separately, also within a word, as in the released code
        position = places[turn]
        positions[turn] = position
        labels[turn] = ids[position]
        luck = unit(draw(key, np.uint64(len(places) + 2 * turn)))
        if luck < rules.mask:
            ids[position] = rules.mask_id
        elif luck < rules.mask + rules.random:
            ids[position] = below(draw(key, np.uint64(len(places) + 2 * turn + 1)), rules.vocab_size)
    return chosen
