"""Masked language modelling: which tokens of a sample are to be predicted, as a function of (seed, sample).

Written for numba; without it (`.py_func`) the same functions are plain Python, which the tests take as reference.
"""

from __future__ import annotations

import numba
import numpy as np

from model.counter import Integer, below, draw, unit

IGNORED = -100
"""The label where nothing is predicted."""


@numba.njit(cache=True, nogil=True)
def num_predictions(length: int, rate: float, limit: int) -> int:
    """Predictions of a sequence: round(rate * length), at least 1 and at most `limit` (RECIPE: special ones count)."""
    return max(1, min(limit, int(np.rint(rate * length))))


@numba.njit(cache=True, nogil=True)
def mask_sample(
    ids: np.ndarray,
    first_length: int,
    second_length: int,
    key: Integer,
    rates: np.ndarray,
    limit: int,
    mask_id: int,
    vocab_size: int,
    positions: np.ndarray,
    labels: np.ndarray,
) -> Integer:
    """Choose and replace tokens of one sample in place.

    Args:
        ids: (length,) the sequence: [CLS] first [SEP], and second [SEP] where second_length > 0.
        first_length: tokens of the first span.
        second_length: tokens of the second span, 0 without one.
        key: the key of (seed, sample).
        rates: (3,) the share to predict, and of these the shares that become [MASK] and a random token.
        limit: most predictions.
        mask_id: id of [MASK].
        vocab_size: random tokens are drawn from all ids, as in the released code.
        positions: (limit,) is filled with the chosen positions in rising order.
        labels: (limit,) is filled with the tokens that stood there.

    Returns:
        How many were chosen; the rest of `positions` and `labels` is left alone.
    """
    num_candidates = first_length + second_length
    length = num_candidates + (3 if second_length > 0 else 2)
    chosen = min(num_predictions(length, rates[0], limit), num_candidates)
    places = np.arange(num_candidates)
    for turn in range(chosen):  # a partial Fisher-Yates shuffle: every subset is as likely
        other = turn + below(draw(key, np.uint64(turn)), num_candidates - turn)
        picked = places[other]
        places[other] = places[turn]
        before = turn  # sorted as they come: they are few, and numpy's sort takes a second to compile
        while before > 0 and places[before - 1] > picked:
            places[before] = places[before - 1]
            before -= 1
        places[before] = picked
    for turn in range(chosen):
        place = places[turn]
        position = place + 1 if place < first_length else place + 2  # past [CLS], and past the [SEP] between
        positions[turn] = position
        labels[turn] = ids[position]
        luck = unit(draw(key, np.uint64(num_candidates + 2 * turn)))
        if luck < rates[1]:
            ids[position] = mask_id
        elif luck < rates[1] + rates[2]:
            ids[position] = below(draw(key, np.uint64(num_candidates + 2 * turn + 1)), vocab_size)
    return chosen
