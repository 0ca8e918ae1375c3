"""Masked language modelling: which tokens of a sample are to be predicted, as a function of (seed, sample).

Written for numba; without it (`.py_func`) the same functions are plain Python, which the tests take as reference.
"""

from __future__ import annotations

import numba
import numpy as np

from model.common.rng import Integer, below, draw, unit


@numba.njit(cache=True, nogil=True)
def num_predictions(length: int, rate: float, limit: int) -> int:
    """Predictions of a sequence: round(rate * length), at least 1 and at most `limit` (RECIPE: special ones count)."""
    return max(1, min(limit, int(np.rint(rate * length))))


@numba.njit(cache=True, nogil=True)
def _choose_tokens(places: np.ndarray, wanted: int, key: Integer) -> Integer:
    """Bring `wanted` of `places` to the front, in rising order; give `wanted`."""
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
    """Whether a word begins at `places[index]`: no piece goes on with a word from beyond a special token."""
    return index == 0 or places[index] != places[index - 1] + 1 or not is_continuation[ids[places[index]]]


@numba.njit(cache=True, nogil=True)
def _choose_words(
    ids: np.ndarray, places: np.ndarray, wanted: int, key: Integer, is_continuation: np.ndarray
) -> Integer:
    """Bring the pieces of words that are drawn one by one to the front of `places`, in rising order; give their number.

    A word that would exceed `wanted` is passed over, as in the released code. Where none fits at all, `wanted` pieces
    of one are chosen, so that no sample is without a prediction.
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
def count_in_words(
    ids: np.ndarray,
    places: np.ndarray,
    length: int,
    key: Integer,
    rate: float,
    limit: int,
    is_continuation: np.ndarray,
) -> Integer:
    """How many tokens `mask_sample` masks in whole words; the arguments are its own, and `places` may be reordered.

    Where there are as many words of one piece as predictions are wanted, none is missing in the end: as long as one is,
    a word of one piece that was not chosen fits. So most samples are read no further than to that many such words.
    """
    wanted = min(num_predictions(length, rate, limit), len(places))
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
    rates: np.ndarray,
    limit: int,
    mask_id: int,
    vocab_size: int,
    is_continuation: np.ndarray,
    positions: np.ndarray,
    labels: np.ndarray,
) -> Integer:
    """Choose and replace tokens of one sample in place.

    Args:
        ids: (row,) the sequence.
        places: (num_candidates,) the positions of its tokens that are not special, rising; they are reordered.
        length: tokens of the sequence, special ones counted.
        key: the key of (seed, sample).
        rates: (3,) the share to predict, and of these the shares that become [MASK] and a random token.
        limit: most predictions.
        mask_id: id of [MASK].
        vocab_size: random tokens are drawn from all ids, as in the released code.
        is_continuation: (vocab_size,) bool, the pieces that go on with a word, to choose whole words; (0,) to choose
            every token on its own.
        positions: (limit,) is filled with the chosen positions in rising order.
        labels: (limit,) is filled with the tokens that stood there.

    Returns:
        How many were chosen; the rest of `positions` and `labels` is left alone.
    """
    wanted = min(num_predictions(length, rates[0], limit), len(places))
    if len(is_continuation) > 0:
        chosen = _choose_words(ids, places, wanted, key, is_continuation)
    else:
        chosen = _choose_tokens(places, wanted, key)
    for turn in range(chosen):  # each piece draws its own fate, those of one word too, as in the released code
        position = places[turn]
        positions[turn] = position
        labels[turn] = ids[position]
        luck = unit(draw(key, np.uint64(len(places) + 2 * turn)))
        if luck < rates[1]:
            ids[position] = mask_id
        elif luck < rates[1] + rates[2]:
            ids[position] = below(draw(key, np.uint64(len(places) + 2 * turn + 1)), vocab_size)
    return chosen
