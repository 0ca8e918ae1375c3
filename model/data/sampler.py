"""The epoch sampler: every document is cut into samples once per epoch, in an order that is a function of keys.

Cutting is keyed by (seed, phase, epoch, document), and the order by (seed, phase, epoch). Sample n of a phase is row n
of its concatenated epochs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from model.common.rng import Domain, Key, permute_range
from model.config.pretraining import SampleKind
from model.data.sentence_pairs import SPECIALS_OF_PAIR, cut_documents
from model.data.sequence_packing import pack_documents
from model.data.token_store import TokenStore


@dataclass(frozen=True)
class Samples:
    """Samples as spans of the token array; all arrays are (num_samples,)."""

    first_start: np.ndarray
    """int64, start of A, or of the tokens of a packed row."""
    first_length: np.ndarray
    """int32, tokens of A, or of all segments of a packed row."""
    second_start: np.ndarray
    """int64, start of B."""
    second_length: np.ndarray
    """int32, tokens of B; 0 in a packed row."""
    pair_label: np.ndarray
    """uint8, the class of a pair: 1 if B comes from another document (NotNext), or A and B are swapped."""
    num_specials: np.ndarray
    """uint16, number of [CLS] and [SEP] tokens."""

    def __len__(self) -> int:
        return len(self.first_start)

    def take(self, rows: np.ndarray) -> Samples:
        """The samples at `rows`."""
        return Samples(*(column[rows] for column in self.columns()))

    def slice(self, begin: int, end: int) -> Samples:
        """Samples `begin` to `end - 1`."""
        return Samples(*(column[begin:end] for column in self.columns()))

    def columns(self) -> tuple[np.ndarray, ...]:
        """The arrays in the order of their declaration."""
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @property
    def lengths(self) -> np.ndarray:
        """(num_samples,) int64: tokens of each sequence, special ones counted."""
        return self.first_length.astype(np.int64) + self.second_length + self.num_specials


def empty_samples(num_samples: int) -> Samples:
    """Zeroed arrays for `num_samples` samples."""
    dtypes = (np.int64, np.int32, np.int64, np.int32, np.uint8, np.uint16)
    return Samples(*(np.zeros(num_samples, dtype=dtype) for dtype in dtypes))


def unusable_reason(store: TokenStore, objective: SampleKind) -> str | None:
    """The reason why a part of a token store has no samples; None if it has some."""
    needed = 2 if objective == "next_sentence" else 1
    if store.num_documents < needed:
        reason = "; next sentence prediction draws from other documents" if needed == 2 else ""
        return f"{store.num_documents} documents, expected at least {needed}{reason}"
    if objective == "sentence_order" and store.num_tokens == store.num_documents:
        return "only documents of one token, expected one with two spans to put in order"
    return None


class EpochSampler:
    """The samples of one part of a token store by number, epoch after epoch.

    Args:
        store: a usable token store (see `unusable_reason`).
        sequence_length: tokens of a sequence, including special tokens.
        objective: kind of samples: sentence pairs or packed rows.
        short_probability: share of pairs with a shorter target; packed rows are always full.
        keys: (seed, phase), or (seed,).
    """

    def __init__(
        self,
        store: TokenStore,
        sequence_length: int,
        *,
        objective: SampleKind,
        short_probability: float,
        keys: tuple[int, ...],
    ) -> None:
        lack = unusable_reason(store, objective)
        assert lack is None, lack
        self._store = store
        self._length = sequence_length
        self.objective = objective
        self._short_probability = short_probability
        self._key, self._numbers = Key(keys[0]), keys[1:]
        self._epoch = 0
        self._first = 0  # the number of the first sample of the epoch
        self._size = self._count(0)
        self._samples: Samples | None = None

    def samples(self, first: int, count: int) -> Samples:
        """Samples `first` to `first + count - 1`, which may span several epochs."""
        parts = []
        while count:
            self._go_to(first)
            if self._samples is None:
                self._samples = self._fill(self._epoch)
            here = min(count, self._first + self._size - first)
            order = np.uint64(self._key.for_(Domain.SAMPLE_ORDER, *self._numbers, self._epoch))
            parts.append(self._samples.take(permute_range(first - self._first, here, self._size, order)))
            first, count = first + here, count - here
        if len(parts) == 1:
            return parts[0]
        return Samples(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts))))

    def epoch_size(self, epoch: int) -> int:
        """Samples of one epoch."""
        return self._size if epoch == self._epoch else self._count(epoch)

    def _go_to(self, sample: int) -> None:
        if sample < self._first:
            self._epoch, self._first, self._size, self._samples = 0, 0, self._count(0), None
        while sample >= self._first + self._size:
            self._first += self._size
            self._epoch += 1
            self._size, self._samples = self._count(self._epoch), None

    def _count(self, epoch: int) -> int:
        return self._run(epoch, filling=False, samples=empty_samples(0))

    def _fill(self, epoch: int) -> Samples:
        samples = empty_samples(self._size)
        self._run(epoch, filling=True, samples=samples)
        return samples

    def _run(self, epoch: int, filling: bool, samples: Samples) -> int:
        key = np.uint64(self._key.for_(Domain.SAMPLER, *self._numbers, epoch))
        offsets = self._store.sentence_offsets, self._store.document_offsets
        if self.objective == "none":
            rows = samples.first_start, samples.first_length, samples.num_specials
            return pack_documents(key, *offsets, self._length, filling, *rows)
        samples.num_specials.fill(SPECIALS_OF_PAIR)
        in_order, most = self.objective == "sentence_order", self._length - SPECIALS_OF_PAIR
        return cut_documents(key, *offsets, in_order, most, self._short_probability, filling, *samples.columns()[:-1])
