"""Features: all sequences of a dataset as one flat array of token ids, made once and sliced into batches.

Texts that are longer than a sequence are cut into overlapping windows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from model.tokenizer.wordpiece import CachedTokenizer, SpecialIds

Ints = npt.NDArray[np.int64]
Window = tuple[int, int]  # first token, number of tokens
_WORTH_LOADING = 50_000  # number of texts above which compiled tokenization repays its loading time


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: `values` (total,) int32 and `offsets` (rows + 1,) int64."""

    values: npt.NDArray[np.int32]
    offsets: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> Ragged:
        """Pack lists of token ids."""
        offsets = _offsets(np.fromiter((len(row) for row in rows), np.int64, len(rows)))
        return Ragged(np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets)


Slices = tuple[Ragged, Ints, Ints]
"""The text of each sequence: its pieces, its first token as an index into `values`, and its number of tokens."""


@dataclass(frozen=True)
class Features:
    """Sequences ready to be batched.

    A row is `group_size` sequences: 1, or 4 in SWAG. `targets` is (rows,) for classes, regression and choice, (rows, 2)
    for span (start and end position), and (tokens,) for tags, where it is `per_token`.
    """

    sequences: Ragged
    boundaries: Ints
    """Start of the second segment in each sequence; the sequence's length if there is none."""
    targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    group_size: int = 1
    per_token: bool = False

    @property
    def num_rows(self) -> int:
        return len(self.boundaries) // self.group_size

    @property
    def row_lengths(self) -> Ints:
        """Length of the longest sequence of each row."""
        return self.sequences.lengths.reshape(-1, self.group_size).max(axis=1)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Ragged:
    """Tokenize texts into token ids, without special tokens or truncation."""
    from model.tokenizer.word_cache import compiled_is_loaded

    specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    # The compiled tokenizer differs from the library only for texts that contain special tokens.
    contained = any("[" in text and any(special in text for special in specials) for text in texts)
    if (compiled_is_loaded() or len(texts) >= _WORTH_LOADING) and not contained:
        ids, lengths = _memo(tokenizer).encode_lines(texts)
        return Ragged(ids.astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]))
    return Ragged.of([row.ids for row in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)])


@functools.lru_cache(maxsize=1)
def _memo(tokenizer: Tokenizer) -> CachedTokenizer:
    from model.tokenizer.wordpiece import CachedTokenizer

    return CachedTokenizer(tokenizer)


def truncated_lengths(first: Ints, second: Ints, capacity: int) -> tuple[Ints, Ints]:
    """Compute the lengths of both texts after truncation to `capacity`, as in the paper's code.

    Tokens are removed from the end of the longer text, or of the second text if both are equally long.
    """
    half = capacity // 2
    return (
        np.minimum(first, np.maximum(capacity - half, capacity - second)),
        np.minimum(second, np.maximum(half, capacity - first)),
    )


def assemble(special: SpecialIds, first: Slices, second: Slices | None = None) -> tuple[Ragged, Ints]:
    """Build [CLS] first [SEP], or [CLS] first [SEP] second [SEP]; returns the sequences and the start of `second`."""
    pieces, starts, lengths = first
    totals = lengths + 2 if second is None else lengths + second[2] + 3
    offsets = _offsets(totals)
    values = np.full(int(offsets[-1]), special.sep, dtype=np.int32)
    begins = offsets[:-1]
    values[begins] = special.cls
    values[_indices(begins + 1, lengths)] = pieces.values[_indices(starts, lengths)]
    boundaries = lengths + 2
    if second is not None:
        pieces, starts, lengths = second
        values[_indices(begins + boundaries, lengths)] = pieces.values[_indices(starts, lengths)]
    return Ragged(values, offsets), boundaries


def _offsets(lengths: Ints) -> Ints:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _indices(starts: Ints, lengths: Ints) -> Ints:
    """starts[0], starts[0] + 1, ... (lengths[0] of them), then the same for the next entry."""
    before = _offsets(lengths)
    return np.arange(before[-1]) + np.repeat(starts - before[:-1], lengths)


def windows(num_tokens: int, capacity: int, stride: int) -> list[Window]:
    """Cover all tokens with windows of at most `capacity` tokens whose starts are `stride` apart.

    There is at least one window, which is empty if there are no tokens.
    """
    assert capacity > 0 and stride > 0
    stride = min(stride, capacity)
    starts = range(0, max(num_tokens - capacity, 0) + stride, stride)
    return [(start, min(num_tokens - start, capacity)) for start in starts]


def owners(num_tokens: int, spans: list[Window]) -> Ints:
    """Choose for each token the window in which the smaller of its left and right context is largest.

    Ties go to the longer window, then to the earlier one (the paper's code, `_check_is_max_context`).
    """
    owner = np.zeros(num_tokens, dtype=np.int64)
    if len(spans) == 1:
        return owner
    best = np.full(num_tokens, -1.0)
    for number, (start, length) in enumerate(spans):
        position = np.arange(length)
        context = np.minimum(position, length - 1 - position) + 0.01 * length
        better = context > best[start : start + length]
        owner[start : start + length][better] = number
        best[start : start + length][better] = context[better]
    return owner
