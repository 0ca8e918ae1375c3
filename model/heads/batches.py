"""The rows of each fine-tuning batch, as a function of (seed, epoch), and their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from model.common.rng import Domain, Key, permutation
from model.config.finetuning import Batches
from model.heads.features import Features, Ints
from model.ops.fused_cpu import IGNORED

_Example = TypeVar("_Example")

_MULTIPLE = 8  # sequence lengths are rounded up to a multiple, which kernels process faster
_LEAST_PADDING = 0.04  # share of padding above which removing it saves time; see model.data.unpadding
_GRANULE = 64  # the number of tokens is padded to a multiple, because kernels are recompiled for every new number
_POOL_BATCHES = 50  # rows are sorted by length within this many batches, so that neighbors stay random


class FinetuneBatch(NamedTuple):
    """A batch as tensors. `sequences` is rows times group size; `length` is the longest sequence, rounded up to 8.

    `input_ids`, `token_type_ids` are (sequences, length) int64; `attention_mask` is (sequences, length) bool, None if
    nothing is padding; `samples` (sequences,) int64 are the sequence numbers that key dropout. `targets` are
    (rows,), (rows, 2) for span, and (sequences, length) for tags.

    If padding is removed, `indices` (num_tokens,) int64 are the computed positions of the flattened rectangle, tokens
    first, and `firsts` (sequences, 1) int64 are the ones that begin a sequence; otherwise both are None.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    attention_mask: Tensor | None
    samples: Tensor
    targets: Tensor
    indices: Tensor | None = None
    firsts: Tensor | None = None

    def to(self, device: torch.device) -> FinetuneBatch:
        if device.type == "cpu":
            return self
        moved = {n: t.to(device, non_blocking=True) for n, t in self._asdict().items() if t is not None}
        return self._replace(**moved)


def chosen(examples: Sequence[_Example], max_rows: int | None) -> list[_Example]:
    """Select at most `max_rows` examples: always the same random subset, in order."""
    if max_rows is None or max_rows >= len(examples):
        return list(examples)
    order = permutation(len(examples), Key(0).for_(Domain.ROW_SUBSET))
    return [examples[number] for number in np.sort(order[:max_rows])]


def training_batches(lengths: Ints, batch_size: int, seed: int, epoch: int, composition: Batches) -> list[Ints]:
    """Return the row numbers of each batch of an epoch; every row occurs once.

    Rows are permuted and cut into batches, which are permuted. With `composition` "length", each group of 50 batches
    is sorted by length (in steps of 8) before it is cut.
    """
    order = permutation(len(lengths), Key(seed).for_(Domain.ROW_ORDER, epoch))
    padded = _padded(lengths)
    batches: list[Ints] = []
    for begin in range(0, len(order), _POOL_BATCHES * batch_size):
        pool = order[begin : begin + _POOL_BATCHES * batch_size]
        if composition == "length":
            pool = pool[np.argsort(padded[pool], kind="stable")]
        batches += [pool[first : first + batch_size] for first in range(0, len(pool), batch_size)]
    return [batches[number] for number in permutation(len(batches), Key(seed).for_(Domain.BATCH_ORDER, epoch))]


def evaluation_batches(lengths: Ints, max_tokens: int) -> Iterator[Ints]:
    """Yield row numbers of batches of at most `max_tokens` tokens (or one longer row), longest rows first."""
    order = np.argsort(-lengths, kind="stable")
    padded = _padded(lengths)
    begin = 0
    while begin < len(order):
        count = max(1, max_tokens // int(padded[order[begin]]))
        yield order[begin : begin + count]
        begin += count


def collate(features: Features, rows: Ints, pad_id: int, unpadded: bool = False) -> FinetuneBatch:
    """Make a batch of rows. `unpadded` leaves out padding if there is enough of it, for heads that read only [CLS]."""
    group = features.group_size
    chosen = rows if group == 1 else (rows[:, None] * group + np.arange(group)).reshape(-1)
    begins = features.sequences.offsets[chosen]
    lengths = features.sequences.offsets[chosen + 1] - begins
    position = np.arange(_padded(lengths.max(keepdims=True))[0])
    inside = position < lengths[:, None]
    index = np.where(inside, begins[:, None] + position, 0)
    targets = features.targets
    batch_targets = np.where(inside, targets[index], IGNORED) if features.per_token else targets[rows]
    input_ids = np.where(inside, features.sequences.values[index], pad_id).astype(np.int64)
    indices = firsts = None
    if unpadded and not features.per_token and inside.mean() <= 1 - _LEAST_PADDING:
        places = np.flatnonzero(inside)
        filling = np.flatnonzero(~inside)[: -len(places) % _GRANULE]
        indices = torch.from_numpy(np.concatenate([places, filling]))
        firsts = torch.from_numpy((np.cumsum(lengths) - lengths)[:, None])
    segments = ((position >= features.boundaries[chosen, None]) & inside).astype(np.int64)
    return FinetuneBatch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(segments),
        attention_mask=None if bool(inside.all()) else torch.from_numpy(inside),
        samples=torch.from_numpy(chosen),
        targets=torch.from_numpy(batch_targets),
        indices=indices,
        firsts=firsts,
    )


def scatter_tokens(features: Features, rows: Ints, values: np.ndarray, into: np.ndarray) -> None:
    """Write a batch's (sequences, length, width) into all tokens, (tokens, width), without padding."""
    begins = features.sequences.offsets[rows]
    lengths = features.sequences.offsets[rows + 1] - begins
    for row, (begin, length) in enumerate(zip(begins, lengths)):
        into[begin : begin + length] = values[row, :length]


def _padded(lengths: Ints) -> Ints:
    return -(-lengths // _MULTIPLE) * _MULTIPLE
