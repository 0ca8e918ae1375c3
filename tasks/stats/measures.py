"""A metric of two systems on the same rows, computed anew for thousands of resamples at once.

Metrics that are functions of sums over rows (all but Spearman's) are computed from sums of per-row counts. Rows whose
counts are equal in all runs are one pattern, so a resample is a draw of how often each pattern comes, and most
benchmarks have few patterns. A system may have several runs (seeds); its value is the mean over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Formula = Callable[[Floats, int], Floats]
"""From sums over rows, (..., counts), and the number of rows to the metric, (...), 0 to 100."""

_ENTRIES = 4_000_000  # numbers of an array of resamples; more does not fit the memory of a small machine
_FEW = 8  # patterns are drawn from their counts where there is one for so many rows; else rows are drawn


class Measure(Protocol):
    """One metric of two systems on the same rows."""

    @property
    def num_rows(self) -> int:
        """Rows that it rests on."""
        ...

    @property
    def exchangeable(self) -> bool:
        """Whether both systems have as many runs, so that `exchanged` can be asked for."""
        ...

    def whole(self) -> tuple[float, float]:
        """The metric of the first and the second system on all rows."""
        ...

    def resampled(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """Both metrics, (size,) each, on as many rows drawn with replacement."""
        ...

    def exchanged(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """Both metrics, (size,) each, where the systems' answers are exchanged on each row by a coin."""
        ...


class SumMeasure:
    """A metric that is a function of sums over rows.

    Args:
        first, second: per-row counts of each system's runs, (runs, rows, counts).
        formula: the metric of these sums.
    """

    def __init__(self, first: Floats, second: Floats, formula: Formula) -> None:
        assert first.shape[1:] == second.shape[1:], "both systems answer the same rows"
        runs = np.concatenate([first, second])
        num_runs, self.num_rows, self._num_counts = runs.shape
        flat = np.ascontiguousarray(runs.transpose(1, 0, 2).reshape(self.num_rows, -1))
        self._patterns, pattern_of, self._frequencies = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
        self._pattern_of = pattern_of.reshape(-1)
        self._num_first = len(first)
        self.exchangeable = 2 * len(first) == num_runs
        self._formula = formula

    def whole(self) -> tuple[float, float]:
        """See `Measure`."""
        first, second = self._values((self._frequencies @ self._patterns)[None])
        return float(first[0]), float(second[0])

    def resampled(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """See `Measure`."""
        few = len(self._patterns) * _FEW <= self.num_rows
        share = self._frequencies / self.num_rows
        found = []
        for count in _chunks(size, len(self._patterns) if few else self.num_rows):
            if few:
                weights = generator.multinomial(self.num_rows, share, count).astype(np.float64)
            else:
                weights = _drawn(generator, count, self._pattern_of, len(self._patterns))
            found.append(self._values(weights @ self._patterns))
        return _joined(found)

    def exchanged(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """See `Measure`."""
        assert self.exchangeable, "a row's answers are exchanged run by run"
        first, second = np.split(self._patterns, 2, axis=1)
        moved = second - first
        totals = (self._frequencies @ first, self._frequencies @ second)
        found = []
        for count in _chunks(size, len(self._patterns)):
            change = generator.binomial(self._frequencies, 0.5, (count, len(self._patterns))) @ moved
            found.append(self._values(np.concatenate([totals[0] + change, totals[1] - change], axis=1)))
        return _joined(found)

    def _values(self, sums: Floats) -> tuple[Floats, Floats]:
        """Both systems' metric of sums (size, runs * counts), the mean over their runs."""
        values = self._formula(sums.reshape(len(sums), -1, self._num_counts).astype(np.float64), self.num_rows)
        return values[:, : self._num_first].mean(axis=1), values[:, self._num_first :].mean(axis=1)


class RankMeasure:
    """Spearman's correlation with the gold scores; ranks are those within each resample.

    Args:
        gold: (rows,).
        first, second: predictions of each system's runs, (runs, rows).
    """

    def __init__(self, gold: Floats, first: Floats, second: Floats) -> None:
        self._gold = gold
        self._first, self._second = first, second
        self.num_rows = len(gold)
        self.exchangeable = len(first) == len(second)

    def whole(self) -> tuple[float, float]:
        """See `Measure`."""
        first, second = self._values(np.ones((1, self.num_rows)))
        return float(first[0]), float(second[0])

    def resampled(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """See `Measure`."""
        rows = np.arange(self.num_rows)
        chunks = _chunks(size, self.num_rows)
        return _joined([self._values(_drawn(generator, count, rows, self.num_rows)) for count in chunks])

    def exchanged(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """See `Measure`."""
        assert self.exchangeable, "a row's answers are exchanged run by run"
        gold = _ranks(self._gold, np.ones((1, self.num_rows)))
        everyone = np.ones((1, self.num_rows))
        found = []
        for count in _chunks(size, 2 * self.num_rows):
            swapped = generator.random((count, self.num_rows)) < 0.5
            values = [np.zeros(count), np.zeros(count)]
            for first, second in zip(self._first, self._second):
                pool = np.concatenate([first, second])
                for system, mine in enumerate((~swapped, swapped)):
                    ranks = _ranks(pool, np.concatenate([mine, ~mine], axis=1).astype(np.float64))
                    chosen = np.where(mine, ranks[:, : self.num_rows], ranks[:, self.num_rows :])
                    values[system] += _correlation(gold, chosen, everyone) / len(self._first)
            found.append((values[0], values[1]))
        return _joined(found)

    def _values(self, weights: Floats) -> tuple[Floats, Floats]:
        gold = _ranks(self._gold, weights)
        means = [
            np.mean([_correlation(gold, _ranks(run, weights), weights) for run in runs], axis=0)
            for runs in (self._first, self._second)
        ]
        return means[0], means[1]


class MeanMeasure:
    """The mean of a metric over parts (MNLI's matched and mismatched), each resampled by itself."""

    def __init__(self, parts: Sequence[Measure]) -> None:
        self._parts = parts
        self.num_rows = sum(part.num_rows for part in parts)
        self.exchangeable = all(part.exchangeable for part in parts)

    def whole(self) -> tuple[float, float]:
        """See `Measure`."""
        first, second = zip(*(part.whole() for part in self._parts))
        return float(np.mean(first)), float(np.mean(second))

    def resampled(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """See `Measure`."""
        first, second = zip(*(part.resampled(generator, size) for part in self._parts))
        return np.mean(first, axis=0), np.mean(second, axis=0)

    def exchanged(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """See `Measure`."""
        first, second = zip(*(part.exchanged(generator, size) for part in self._parts))
        return np.mean(first, axis=0), np.mean(second, axis=0)


def _chunks(size: int, width: int) -> Iterator[int]:
    """`size` in parts, each small enough for an array with `width` columns."""
    most = max(1, _ENTRIES // width)
    for begin in range(0, size, most):
        yield min(most, size - begin)


def _joined(found: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    first, second = zip(*found)
    return np.concatenate(first), np.concatenate(second)


def _drawn(generator: np.random.Generator, count: int, pattern_of: npt.NDArray[np.int64], num_patterns: int) -> Floats:
    """How often each pattern comes when rows are drawn with replacement, (count, patterns)."""
    rows = generator.integers(0, len(pattern_of), (count, len(pattern_of)))
    places = pattern_of[rows] + np.arange(count)[:, None] * num_patterns
    return np.bincount(places.reshape(-1), minlength=count * num_patterns).reshape(count, -1).astype(np.float64)


def _ranks(values: Floats, weights: Floats) -> Floats:
    """The rank of each value, (size, rows), where value i is there weights[:, i] times; equals share a rank."""
    distinct, group_of = np.unique(values, return_inverse=True)
    order = np.argsort(group_of, kind="stable")
    begins = np.searchsorted(group_of[order], np.arange(len(distinct)))
    counts = np.add.reduceat(weights[:, order], begins, axis=1)
    ranks: Floats = (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, group_of]
    return ranks


def _correlation(first: Floats, second: Floats, weights: Floats) -> Floats:
    """Pearson's correlation of ranks with weights, 0 to 100; 0 where one side is constant."""
    middle = (weights.sum(axis=1, keepdims=True) + 1) / 2  # the mean of ranks, ties or none
    first, second = first - middle, second - middle
    covariance = (weights * first * second).sum(axis=1)
    spread = (weights * first * first).sum(axis=1) * (weights * second * second).sum(axis=1)
    return 100.0 * np.divide(covariance, np.sqrt(spread), out=np.zeros_like(covariance), where=spread > 0)
