"""Sequences: where the special tokens, the spans and the candidates for masking of a sample lie.

Written for numba; without it (`.py_func`) the same functions are plain Python, which the tests take as reference.
"""

from __future__ import annotations

import numba
import numpy as np

from model.common.rng import Integer
from model.data.sequence_packing import document_at


@numba.njit(cache=True, nogil=True)
def _put(tokens: np.ndarray, start: Integer, count: Integer, ids: np.ndarray, at: Integer, places: np.ndarray) -> None:
    """Copy `count` tokens to position `at` on, and write those positions to the front of `places`."""
    # Indices that cannot be negative, and one output in a loop: else nothing is vectorised.
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
    segments: np.ndarray,
    places: np.ndarray,
) -> None:
    """[CLS] A [SEP] B [SEP] into `ids`, 1 for B [SEP] into `segments`, the positions of A and B into `places`."""
    ids[0] = cls_id
    _put(tokens, first_start, first_length, ids, 1, places)
    ids[1 + first_length] = sep_id
    at = 2 + first_length
    _put(tokens, second_start, second_length, ids, at, places[first_length : first_length + second_length])
    ids[at + second_length] = sep_id
    segments[at : at + second_length + 1] = 1


@numba.njit(cache=True, nogil=True)
def lay_out_pieces(
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
    """`count` tokens from `start` on, cut where documents end, as [CLS] piece [SEP] [CLS] piece [SEP] ... into `ids`.

    The positions of the tokens go into `places`. `segment_starts` receives, for every position, the position of its
    segment's [CLS]; padding is a segment, too.
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
