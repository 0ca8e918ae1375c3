"""Packed rows: sequences filled with pieces of documents, [CLS] piece [SEP] [CLS] piece [SEP] ..., without padding.

A row is a stretch of the token array, cut where a document ends. Pieces of a row never see each other and their
positions start anew, so which documents share a row changes nothing, and they may as well be neighbours in the store.

Written for numba; without it (`.py_func`) the same functions are plain Python, which the tests take as reference.
"""

from __future__ import annotations

import numba
import numpy as np

from model.common.rng import Integer, below, draw

SPECIALS_OF_PIECE = 2  # [CLS] piece [SEP]
LEAST_PIECE = 6
"""Tokens below which a document is not begun at a row's end, unless it is as short itself: they would have next to
nothing to be read from. What stays empty for it is some thousandth of the tokens."""


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

    The first row of an epoch has a random length, from `LEAST_PIECE` and its special tokens on, so that all borders
    differ between epochs.
    """
    at, document, count = sentence_offsets[0], 0, 0
    least = LEAST_PIECE + SPECIALS_OF_PIECE
    room = least + below(draw(key, np.uint64(0)), sequence_length - least + 1)
    while at < sentence_offsets[-1]:
        begin, specials = at, 0
        while at < sentence_offsets[-1]:
            left = sentence_offsets[document_offsets[document + 1]] - at
            if room - SPECIALS_OF_PIECE < min(left, LEAST_PIECE):
                break
            taken = min(left, room - SPECIALS_OF_PIECE)
            at += taken
            room -= taken + SPECIALS_OF_PIECE
            specials += SPECIALS_OF_PIECE
            if taken == left:
                document += 1
        if filling:
            start[count], length[count], num_specials[count] = begin, at - begin, specials
        count += 1
        room = np.int64(sequence_length)
    return count


@numba.njit(cache=True, nogil=True)
def document_at(place: Integer, sentence_offsets: np.ndarray, document_offsets: np.ndarray) -> Integer:
    """The document that holds token number `place` (by bisection)."""
    low, high = 0, len(document_offsets) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if sentence_offsets[document_offsets[middle]] <= place:
            low = middle
        else:
            high = middle
    return low
