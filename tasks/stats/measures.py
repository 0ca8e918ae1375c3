"""Metrics of two systems on the same dev rows, recomputed for thousands of resamples at once.

Metrics that are functions of sums over rows (all but Spearman's) are computed from sums of per-row counts by the
formulas of `model.benchmarks.scoring.metrics`. Rows whose counts are equal in all runs form one pattern, so a resample
draws how often each pattern occurs, and most benchmarks have few patterns. A system may have several runs (seeds); its
value is the mean over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.scoring import metrics
from model.benchmarks.scoring.metrics import Formula
from model.common.errors import UserError

Records = Sequence[Mapping[str, Any]]
"""The rows of a run's predictions.jsonl."""
Floats = npt.NDArray[np.float64]

_ENTRIES = 4_000_000  # numbers in an array of resamples, to limit memory
_FEW = 8  # patterns are drawn by their counts if there are at least so many rows per pattern; else rows are drawn


class Measure(Protocol):
    """One metric of two systems on the same rows."""

    @property
    def num_rows(self) -> int:
        """Number of dev rows."""
        ...

    @property
    def exchangeable(self) -> bool:
        """Both systems have the same number of runs, as `exchanged` requires."""
        ...

    def whole(self) -> tuple[float, float]:
        """Return the metric of the first and the second system on all rows."""
        ...

    def resampled(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """Return both metrics, (size,) each, on rows drawn with replacement."""
        ...

    def exchanged(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """Return both metrics, (size,) each, with the systems' predictions exchanged on random rows."""
        ...


class SumMeasure:
    """A metric that is a function of sums over rows.

    Args:
        first, second: per-row counts of each system's runs, (runs, rows, counts).
        formula: the metric of these sums.
    """

    def __init__(self, first: Floats, second: Floats, formula: Formula) -> None:
        assert first.shape[1:] == second.shape[1:], "both systems have the same rows"
        runs = np.concatenate([first, second])
        num_runs, self.num_rows, self._num_counts = runs.shape
        flat = np.ascontiguousarray(runs.transpose(1, 0, 2).reshape(self.num_rows, -1))
        self._patterns, pattern_of, self._frequencies = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
        self._pattern_of = pattern_of.reshape(-1)
        self._num_first = len(first)
        self.exchangeable = 2 * len(first) == num_runs
        self._formula = formula

    def whole(self) -> tuple[float, float]:
        first, second = self._values((self._frequencies @ self._patterns)[None])
        return float(first[0]), float(second[0])

    def resampled(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
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
        assert self.exchangeable, "predictions are exchanged run by run"
        first, second = np.split(self._patterns, 2, axis=1)
        moved = second - first
        totals = (self._frequencies @ first, self._frequencies @ second)
        found = []
        for count in _chunks(size, len(self._patterns)):
            change = generator.binomial(self._frequencies, 0.5, (count, len(self._patterns))) @ moved
            found.append(self._values(np.concatenate([totals[0] + change, totals[1] - change], axis=1)))
        return _joined(found)

    def _values(self, sums: Floats) -> tuple[Floats, Floats]:
        """Mean metric over the runs of both systems, of sums (size, runs * counts)."""
        values = self._formula(sums.reshape(len(sums), -1, self._num_counts).astype(np.float64), self.num_rows)
        return values[:, : self._num_first].mean(axis=1), values[:, self._num_first :].mean(axis=1)


class RankMeasure:
    """Spearman correlation with the gold scores; ranks are computed within each resample.

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
        first, second = self._values(np.ones((1, self.num_rows)))
        return float(first[0]), float(second[0])

    def resampled(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        rows = np.arange(self.num_rows)
        chunks = _chunks(size, self.num_rows)
        return _joined([self._values(_drawn(generator, count, rows, self.num_rows)) for count in chunks])

    def exchanged(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        assert self.exchangeable, "predictions are exchanged run by run"
        gold = metrics.ranks(self._gold, np.ones((1, self.num_rows)))
        everyone = np.ones((1, self.num_rows))
        found = []
        for count in _chunks(size, 2 * self.num_rows):
            swapped = generator.random((count, self.num_rows)) < 0.5
            values = [np.zeros(count), np.zeros(count)]
            for first, second in zip(self._first, self._second):
                pool = np.concatenate([first, second])
                for system, mine in enumerate((~swapped, swapped)):
                    ranks = metrics.ranks(pool, np.concatenate([mine, ~mine], axis=1).astype(np.float64))
                    chosen = np.where(mine, ranks[:, : self.num_rows], ranks[:, self.num_rows :])
                    values[system] += _correlation(gold, chosen, everyone) / len(self._first)
            found.append((values[0], values[1]))
        return _joined(found)

    def _values(self, weights: Floats) -> tuple[Floats, Floats]:
        gold = metrics.ranks(self._gold, weights)
        means = [
            np.mean([_correlation(gold, metrics.ranks(run, weights), weights) for run in runs], axis=0)
            for runs in (self._first, self._second)
        ]
        return means[0], means[1]


class MeanMeasure:
    """Mean of a metric over parts (MNLI's matched and mismatched), each resampled by itself."""

    def __init__(self, parts: Sequence[Measure]) -> None:
        self._parts = parts
        self.num_rows = sum(part.num_rows for part in parts)
        self.exchangeable = all(part.exchangeable for part in parts)

    def whole(self) -> tuple[float, float]:
        first, second = zip(*(part.whole() for part in self._parts))
        return float(np.mean(first)), float(np.mean(second))

    def resampled(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        first, second = zip(*(part.resampled(generator, size) for part in self._parts))
        return np.mean(first, axis=0), np.mean(second, axis=0)

    def exchanged(self, generator: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        first, second = zip(*(part.exchanged(generator, size) for part in self._parts))
        return np.mean(first, axis=0), np.mean(second, axis=0)


def _chunks(size: int, width: int) -> Iterator[int]:
    """Split `size` into parts, each small enough for an array with `width` columns."""
    most = max(1, _ENTRIES // width)
    for begin in range(0, size, most):
        yield min(most, size - begin)


def _joined(found: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    first, second = zip(*found)
    return np.concatenate(first), np.concatenate(second)


def _drawn(generator: np.random.Generator, count: int, pattern_of: npt.NDArray[np.int64], num_patterns: int) -> Floats:
    """Occurrences of each pattern in rows drawn with replacement, (count, patterns)."""
    rows = generator.integers(0, len(pattern_of), (count, len(pattern_of)))
    places = pattern_of[rows] + np.arange(count)[:, None] * num_patterns
    return np.bincount(places.reshape(-1), minlength=count * num_patterns).reshape(count, -1).astype(np.float64)


def _correlation(first: Floats, second: Floats, weights: Floats) -> Floats:
    """Pearson correlation of ranks, 0 to 100, where row i occurs weights[:, i] times."""
    num_rows = weights.sum(axis=1)
    middle = (num_rows[:, None] + 1) / 2  # the mean of ranks, with or without ties
    first, second = first - middle, second - middle
    moments = (first, second, first * first, second * second, first * second)
    sums = np.broadcast_arrays(*((weights * moment).sum(axis=1) for moment in moments))
    return metrics.pearson(np.stack(sums, axis=-1), num_rows)


def measure_of(row: Benchmark, metric: str, first: Sequence[Records], second: Sequence[Records]) -> Measure:
    """The metric (one of the benchmark's, without a part's suffix) of two systems, each with one or more runs.

    Raises:
        UserError: the runs were evaluated on different rows.
    """
    runs = [*first, *second]
    _check_same_rows(row, runs)
    indices: dict[str, list[int]] = {}
    for index, record in enumerate(runs[0]):
        indices.setdefault(str(record.get("part", "")), []).append(index)
    parts = []
    for part in indices.values():
        cut = [[run[index] for index in part] for run in runs]
        parts.append(_measure(row, metric, cut[: len(first)], cut[len(first) :]))
    return parts[0] if len(parts) == 1 else MeanMeasure(parts)


def _measure(row: Benchmark, metric: str, first: Sequence[Records], second: Sequence[Records]) -> Measure:
    if metric == "spearman":
        gold = np.array([record["label"] for record in first[0]], dtype=np.float64)
        predicted = [
            np.array([[record["prediction"] for record in run] for run in runs], dtype=np.float64)
            for runs in (first, second)
        ]
        return RankMeasure(gold, *predicted)
    spec = HEAD_SPECS[row.head]
    counted = [
        np.stack([np.array(spec.row_counts(row, metric, run), dtype=np.float64) for run in runs])
        for runs in (first, second)
    ]
    return SumMeasure(counted[0], counted[1], spec.formula(metric))


def _check_same_rows(row: Benchmark, runs: Sequence[Records]) -> None:
    expected = [(record["id"], record.get("part"), record["label"]) for record in runs[0]]
    for run in runs[1:]:
        found = [(record["id"], record.get("part"), record["label"]) for record in run]
        if found == expected:
            continue
        if len(found) != len(expected):
            what = f"{len(expected)} rows in one run, {len(found)} in another"
        else:
            what = f"row {next(index for index, pair in enumerate(zip(expected, found)) if pair[0] != pair[1])} differs"
        raise UserError(
            f"{row.name}: the runs were evaluated on different dev rows ({what}); run the finetune stage again"
        )
