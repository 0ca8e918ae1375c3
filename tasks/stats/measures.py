"""Metrics of two systems on the same dev rows, recomputed for thousands of resamples at once.

Metrics that are functions of sums over rows (all but Spearman's) are computed from sums of per-row counts by the
formulas of `model.benchmarks.scoring.metrics`. Rows whose counts are equal in all runs form one pattern. Most
benchmarks have few patterns, so a resample draws the frequency of each pattern. A system may have several runs (seeds),
whose values are averaged.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.scoring import metrics
from model.benchmarks.scoring.metrics import Formula
from model.benchmarks.table import Benchmark
from model.common.errors import UserError

Records = Sequence[Mapping[str, Any]]
"""The rows of a run's predictions.jsonl."""
Floats = npt.NDArray[np.float64]

_ENTRIES = 4_000_000  # maximum size of an array of resamples, to limit memory
_FEW = 8  # minimum number of rows per pattern to draw frequencies of patterns; otherwise rows are drawn


class _WeightedMeasure(abc.ABC):
    """One metric of two systems on the same rows, as a function of the frequency of each pattern of rows.

    Methods return the metric of each run, the first system's runs first, or the mean of each system's runs.
    `pattern_of` is the pattern of each row, (rows,), and `frequencies` the number of rows of each pattern, (patterns,).
    """

    def __init__(
        self, pattern_of: npt.NDArray[np.int64], frequencies: npt.NDArray[Any], num_runs: tuple[int, int]
    ) -> None:
        self._pattern_of, self._frequencies, self.num_runs = pattern_of, frequencies, num_runs
        self.num_rows = len(pattern_of)
        self.exchangeable = num_runs[0] == num_runs[1]

    def whole(self) -> Floats:
        """Return the mean metric of each system, (2,)."""
        return system_means(self._values(self._frequencies)[:, 0], self.num_runs)

    def resampled(self, generator: np.random.Generator, size: int) -> Floats:
        """Return the metric of each run on rows drawn with replacement, (runs, size)."""
        num_patterns, share = len(self._frequencies), self._frequencies / self.num_rows
        few = num_patterns * _FEW <= self.num_rows

        def values(count: int) -> Floats:
            if few:
                return self._values(generator.multinomial(self.num_rows, share, count).astype(np.float64))
            return self._values(_drawn(generator, count, self._pattern_of, num_patterns))

        return _in_chunks(values, size, num_patterns if few else self.num_rows)

    def exchanged(self, generator: np.random.Generator, size: int) -> Floats:
        """Return the mean metric of each system with their predictions exchanged on random rows, (2, size)."""
        assert self.exchangeable, "predictions are exchanged run by run"
        return _in_chunks(lambda count: self._exchanged(generator, count), size, 2 * len(self._frequencies))

    @abc.abstractmethod
    def _values(self, weights: npt.NDArray[Any]) -> Floats:
        """Compute the metric, (runs, size), if each pattern occurs `weights` times, (patterns,) or (size, patterns)."""

    @abc.abstractmethod
    def _exchanged(self, generator: np.random.Generator, size: int) -> Floats: ...


class SumMeasure(_WeightedMeasure):
    """A metric that is a function (`formula`) of sums over the rows' counts, (runs, rows, counts) of each system."""

    def __init__(self, first: Floats, second: Floats, formula: Formula) -> None:
        assert first.shape[1:] == second.shape[1:], "both systems have the same rows"
        runs = np.concatenate([first, second])
        _, num_rows, self._num_counts = runs.shape
        flat = np.ascontiguousarray(runs.transpose(1, 0, 2).reshape(num_rows, -1))
        self._patterns, pattern_of, frequencies = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
        super().__init__(pattern_of.reshape(-1), frequencies, (len(first), len(second)))
        self._formula = formula

    def _values(self, weights: npt.NDArray[Any]) -> Floats:
        return self._of_sums(np.atleast_2d(weights @ self._patterns))

    def _exchanged(self, generator: np.random.Generator, size: int) -> Floats:
        first, second = np.split(self._patterns, 2, axis=1)
        change = generator.binomial(self._frequencies, 0.5, (size, len(self._patterns))) @ (second - first)
        sums = [self._frequencies @ first + change, self._frequencies @ second - change]
        return system_means(self._of_sums(np.concatenate(sums, axis=1)), self.num_runs)

    def _of_sums(self, sums: Floats) -> Floats:
        """Compute the metric of each run, (runs, size), from sums (size, runs * counts)."""
        return self._formula(sums.reshape(len(sums), -1, self._num_counts).astype(np.float64), self.num_rows).T


class RankMeasure(_WeightedMeasure):
    """Spearman correlation with the gold scores; ranks are computed within each resample. Every row is a pattern.

    `gold` is (rows,), the predictions of each system's runs are (runs, rows).
    """

    def __init__(self, gold: Floats, first: Floats, second: Floats) -> None:
        super().__init__(np.arange(len(gold)), np.ones(len(gold)), (len(first), len(second)))
        self._gold = gold
        self._systems = first, second

    def _values(self, weights: npt.NDArray[Any]) -> Floats:
        weights = np.atleast_2d(weights).astype(np.float64)
        gold = metrics.ranks(self._gold, weights)
        runs = itertools.chain(*self._systems)
        return np.stack([_correlation(gold, metrics.ranks(run, weights), weights) for run in runs])

    def _exchanged(self, generator: np.random.Generator, size: int) -> Floats:
        everyone = np.ones((1, self.num_rows))
        gold = metrics.ranks(self._gold, everyone)
        swapped = generator.random((size, self.num_rows)) < 0.5
        values = np.zeros((2, size))
        for runs in zip(*self._systems):
            pool = np.concatenate(runs)
            for system, mine in enumerate((~swapped, swapped)):
                ranks = metrics.ranks(pool, np.concatenate([mine, ~mine], axis=1).astype(np.float64))
                chosen = np.where(mine, ranks[:, : self.num_rows], ranks[:, self.num_rows :])
                values[system] += _correlation(gold, chosen, everyone) / self.num_runs[0]
        return values


class MeanMeasure:
    """Mean of a metric over parts (MNLI's matched and mismatched), which are resampled separately."""

    def __init__(self, parts: Sequence[SumMeasure | RankMeasure]) -> None:
        self._parts = parts
        self.num_rows, self.num_runs = sum(part.num_rows for part in parts), parts[0].num_runs
        self.exchangeable = all(part.exchangeable for part in parts)

    def whole(self) -> Floats:
        return np.mean([part.whole() for part in self._parts], axis=0)

    def resampled(self, generator: np.random.Generator, size: int) -> Floats:
        return np.mean([part.resampled(generator, size) for part in self._parts], axis=0)

    def exchanged(self, generator: np.random.Generator, size: int) -> Floats:
        return np.mean([part.exchanged(generator, size) for part in self._parts], axis=0)


Measure = SumMeasure | RankMeasure | MeanMeasure


def system_means(values: Floats, num_runs: tuple[int, int]) -> Floats:
    """Average the values of each system's runs: (runs, ...) to (2, ...)."""
    return np.stack([runs.mean(axis=0) for runs in np.split(values, [num_runs[0]])])


def _in_chunks(values_of: Callable[[int], Floats], size: int, width: int) -> Floats:
    """Call `values_of` for parts of `size` that are small enough for an array with `width` columns; (..., size)."""
    most = max(1, _ENTRIES // width)
    return np.concatenate([values_of(min(most, size - begin)) for begin in range(0, size, most)], axis=1)


def _drawn(generator: np.random.Generator, count: int, pattern_of: npt.NDArray[np.int64], num_patterns: int) -> Floats:
    """Draw rows with replacement and count the patterns, (count, patterns)."""
    rows = generator.integers(0, len(pattern_of), (count, len(pattern_of)))
    places = pattern_of[rows] + np.arange(count)[:, None] * num_patterns
    return np.bincount(places.reshape(-1), minlength=count * num_patterns).reshape(count, -1).astype(np.float64)


def _correlation(first: Floats, second: Floats, weights: Floats) -> Floats:
    """Compute the Pearson correlation of ranks, 0 to 100, if row i occurs weights[:, i] times."""
    num_rows = weights.sum(axis=1)
    middle = (num_rows[:, None] + 1) / 2  # the mean of ranks, with or without ties
    first, second = first - middle, second - middle
    moments = (first, second, first * first, second * second, first * second)
    sums = np.broadcast_arrays(*((weights * moment).sum(axis=1) for moment in moments))
    return metrics.pearson(np.stack(sums, axis=-1), num_rows)


def measure_of(row: Benchmark, metric: str, first: Sequence[Records], second: Sequence[Records]) -> Measure:
    """Create the measure of a metric (without a part's suffix) for two systems, each with one or more runs.

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


def _measure(
    row: Benchmark, metric: str, first: Sequence[Records], second: Sequence[Records]
) -> SumMeasure | RankMeasure:
    if metric == "spearman":
        gold = np.array([record["label"] for record in first[0]], dtype=np.float64)
        predicted = [[[record["prediction"] for record in run] for run in runs] for runs in (first, second)]
        return RankMeasure(gold, *(np.array(runs, dtype=np.float64) for runs in predicted))
    spec = HEAD_SPECS[row.head]
    counts = [
        np.array([spec.row_counts(row, metric, run) for run in runs], dtype=np.float64) for runs in (first, second)
    ]
    return SumMeasure(counts[0], counts[1], spec.formula(metric))


def _check_same_rows(row: Benchmark, runs: Sequence[Records]) -> None:
    expected, *others = [[(record["id"], record.get("part"), record["label"]) for record in run] for run in runs]
    for found in others:
        if found == expected:
            continue
        if len(found) != len(expected):
            what = f"{len(expected)} rows in one run, {len(found)} in another"
        else:
            what = f"row {next(index for index, pair in enumerate(zip(expected, found)) if pair[0] != pair[1])} differs"
        raise UserError(
            f"{row.name}: the runs were evaluated on different dev rows ({what}); run the finetune stage again"
        )
