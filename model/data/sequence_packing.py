"""Packed rows: sequences filled with pieces of documents, [CLS] segment [SEP] [CLS] segment [SEP] ..., without padding.

A row is a span of the token array, split into segments at document ends. Segments do not attend to each other, and
their positions start from 0, so it does not matter which documents share a row.

The functions are compiled by numba; the tests compare them with the same functions in plain Python (`.py_func`).
"""

from __future__ import annotations

import numba
import numpy as np

from model.common.rng import Integer, below, draw

SPECIALS_OF_SEGMENT = 2  # [CLS] segment [SEP]
LEAST_SEGMENT = 6
"""Smallest segment of a longer document at the end of a row; shorter ones would have hardly any context."""


@numba.njit(cache=True, nogil=True)
def pack_documents(
    key: Integer,
    sentence_offsets: np.ndarray,
    document_offsets: np.ndarray,
    sequence_length: int,
    filling: bool,
    start: np.ndarray,
    length: np.ndarray,
    num_specials: np.ndarray,
) -> int:
    """Cut all tokens into rows of `sequence_length`, special tokens counted; write them if `filling`; count them.

    The first row of an epoch has a random length, from `LEAST_SEGMENT` and its special tokens on, so that all borders
    differ between epochs.
    """
    at, document, count = sentence_offsets[0], 0, 0
    least = LEAST_SEGMENT + SPECIALS_OF_SEGMENT
    room = least + below(draw(key, np.uint64(0)), sequence_length - least + 1)
    while at < sentence_offsets[-1]:
        begin, specials = at, 0
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
        if filling:
            start[count], length[count], num_specials[count] = begin, at - begin, specials
        count += 1
        room = np.int64(sequence_length)
    return count


@numba.njit(cache=True, nogil=True)
def document_at(place: Integer, sentence_offsets: np.ndarray, document_offsets: np.ndarray) -> Integer:
    """The document that contains token number `place` (by bisection)."""
    low, high = 0, len(document_offsets) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if sentence_offsets[document_offsets[middle]] <= place:
            low = middle
        else:
            high = middle
    return low
