"""Compare two systems on a benchmark: tests over dev rows and over seeds, intervals, and Holm's correction.

The leaderboard, `cloze compare` and the promotion gate all compare by `compare_runs`.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model.benchmarks.table import Benchmark
from tasks.stats.measures import Floats, Measure, Records, measure_of, system_means

LEVEL = 0.05
CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
_ROUNDING = 1e-9  # maximum difference of equal scores, in points


@dataclass(frozen=True)
class Run:
    """One fine-tuning run of a system."""

    seed: int
    score: float
    records: Records
    """Rows of predictions.jsonl; empty if not available."""
    pretrain_seed: int | None = None
    """Seed of the pre-training that it started from; None if the system has a single pre-training."""


@dataclass(frozen=True)
class RowTest:
    """Test over dev rows: would the difference appear on other rows of the same kind? The runs are taken as given."""

    low: float
    high: float
    error: float
    """Standard error of the difference."""
    p: float
    num_rows: int
    num_resamples: int
    test: str
    """randomisation, or bootstrap where the systems have different numbers of runs."""


@dataclass(frozen=True)
class SeedTest:
    """Test over seeds: would the difference appear in other training runs?

    The units are fine-tuning runs, or the means of pre-trainings for a system with several.
    """

    test: str
    """paired or welch."""
    difference: float
    low: float
    high: float
    p: float
    error: float
    degrees_of_freedom: float


@dataclass(frozen=True)
class PretrainTest:
    """Multi-Bootstrap (Sellam et al. 2022, arXiv:2106.16163): would the difference appear with other pre-training
    seeds and on other dev rows?"""

    low: float
    high: float
    p: float
    num_pretrainings: tuple[int, int]
    paired: bool
    """True if both systems have the same pre-training seeds, which are then drawn together."""


@dataclass(frozen=True)
class Comparison:
    """Two systems on one benchmark. Differences are first minus second, in points."""

    benchmark: str
    metric: str
    first: float
    second: float
    num_runs: list[int]
    difference: float
    rows: RowTest | None
    """None if predictions are not available."""
    seeds: SeedTest | None
    """None if a system has only one seed."""
    p: float | None
    """The largest p-value, because a claim must hold for other rows and for other seeds."""
    pretraining: PretrainTest | None = None
    """None if a system has a single pre-training (or no predictions): no interval covers its pre-training seed."""
    p_corrected: float | None = None
    """After Holm's correction over several benchmarks."""
    better: str | None = None
    """first or second, if `p_corrected` is significant."""


def compare_runs(
    name: str,
    row: Benchmark | None,
    metric: str,
    first: Sequence[Run],
    second: Sequence[Run],
    num_resamples: int = NUM_RESAMPLES,
) -> Comparison:
    """Compare the runs of two systems on the benchmark `name`; only over seeds without its `row` or the records.

    Raises:
        UserError: the runs were evaluated on different rows.
    """
    first, second = (sorted(runs, key=lambda run: (run.pretrain_seed or 0, run.seed)) for runs in (first, second))
    means = [statistics.fmean(run.score for run in runs) for runs in (first, second)]
    rows = pretraining = None
    groups = [pretrainings_of(first), pretrainings_of(second)]
    if row is not None and all(run.records for run in (*first, *second)):
        measure = measure_of(row, metric, [run.records for run in first], [run.records for run in second])
        means = measure.whole().tolist()
        rows = paired_bootstrap(measure, num_resamples)
        if measure.exchangeable:
            p = randomization_test(measure, num_resamples)
            rows = dataclasses.replace(rows, test="randomisation", p=p)
        if min(map(len, groups)) > 1:
            pretraining = multi_bootstrap(measure, groups[0], groups[1], num_resamples)
    seeds = seed_test(_units(first, groups[0]), _units(second, groups[1]))
    return Comparison(
        benchmark=name,
        metric=metric,
        first=means[0],
        second=means[1],
        num_runs=[len(first), len(second)],
        difference=means[0] - means[1],
        rows=rows,
        seeds=seeds,
        p=max((test.p for test in (rows, seeds, pretraining) if test is not None), default=None),
        pretraining=pretraining,
    )


def pretrainings_of(runs: Sequence[Run]) -> dict[int, list[int]]:
    """Group the indices of runs by pre-training seed; empty for a system with a single pre-training."""
    groups: dict[int, list[int]] = {}
    for index, run in enumerate(runs):
        if run.pretrain_seed is not None:
            groups.setdefault(run.pretrain_seed, []).append(index)
    return groups


def _units(runs: Sequence[Run], groups: Mapping[int, Sequence[int]]) -> dict[tuple[str, int], float]:
    """Return the independent scores of a system: the mean of each pre-training, or of each run if there is only one."""
    if len(groups) < 2:
        return {("fine-tuning", run.seed): run.score for run in runs}
    return {
        ("pre-training", seed): statistics.fmean(runs[index].score for index in indices)
        for seed, indices in groups.items()
    }


def multi_bootstrap(
    measure: Measure,
    first: Mapping[int, Sequence[int]],
    second: Mapping[int, Sequence[int]],
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> PretrainTest:
    """Bootstrap the interval of first minus second over pre-training seeds and dev rows (Sellam et al. 2022).

    Each resample draws rows, the same for all runs, and pre-trainings with all their fine-tuning runs: jointly if both
    systems have the same seeds, otherwise independently. The method was made for 25 seeds. With few, resamples of the
    seeds vary too little, so that with 3 seeds a quarter of the intervals of equal systems would not contain 0. The
    deviation of the drawn seeds from all seeds is therefore enlarged by sqrt(n / (n - 1)) · t / z, where t and z are
    the 97.5 % quantiles of Student's t (degrees of freedom as in Welch's test) and of the normal distribution.

    Args:
        first, second: indices of each system's runs by pre-training seed.
    """
    generator = np.random.default_rng(seed)
    values = measure.resampled(generator, num_resamples)
    halves = np.split(values, [measure.num_runs[0]])
    systems = [  # (pre-trainings, resamples)
        np.stack([half[list(indices)].mean(axis=0) for indices in groups.values()])
        for half, groups in zip(halves, (first, second))
    ]
    paired = set(first) == set(second)
    if paired:
        order = [list(second).index(one) for one in first]
        systems = [systems[0] - systems[1][order]]
    variances = [float(np.var(system.mean(axis=1), ddof=1)) / len(system) for system in systems]
    _, freedom = combined_error(
        (math.sqrt(variance), len(system) - 1) for variance, system in zip(variances, systems) if variance
    )
    quantile = t_quantile(0.5 + CONFIDENCE / 2, freedom) / t_quantile(0.5 + CONFIDENCE / 2, math.inf)
    drawn = []
    for system in systems:
        count = len(system)
        share = generator.multinomial(count, [1 / count] * count, num_resamples).T / count
        share = 1 / count + math.sqrt(count / (count - 1)) * quantile * (share - 1 / count)
        drawn.append((share * system).sum(axis=0))
    differences = drawn[0] if paired else drawn[0] - drawn[1]
    return PretrainTest(*_percentiles(differences), _two_sided(differences), (len(first), len(second)), paired)


def _percentiles(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _two_sided(differences: Floats) -> float:
    """Return the p-value that belongs to the percentile interval: twice the share on the other side of 0."""
    tail = min(int(np.sum(differences <= _ROUNDING)), int(np.sum(differences >= -_ROUNDING)))
    return min(1.0, 2.0 * (tail + 1) / (len(differences) + 1))


def correct(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Correct the p-values of all tested comparisons, and decide which system is better."""
    corrected = iter(holm([one.p for one in comparisons if one.p is not None]))
    found = []
    for one in comparisons:
        p = None if one.p is None else next(corrected)
        side = "first" if one.difference > 0 else "second"
        found.append(dataclasses.replace(one, p_corrected=p, better=side if p is not None and p < LEVEL else None))
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """Apply Holm's (1979) correction, in the given order; it controls the family-wise error rate."""
    values = np.array(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    values[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    return values.tolist()


def paired_bootstrap(measure: Measure, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> RowTest:
    """Bootstrap the percentile interval of first minus second over dev rows, the same rows for both systems."""
    values = measure.resampled(np.random.default_rng(seed), num_resamples)
    first, second = system_means(values, measure.num_runs)
    differences = first - second
    low, high = _percentiles(differences)
    return RowTest(
        low=low,
        high=high,
        error=float(np.std(differences)),
        p=_two_sided(differences),
        num_rows=measure.num_rows,
        num_resamples=num_resamples,
        test="bootstrap",
    )


def randomization_test(measure: Measure, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> float:
    """Test "both systems are the same" by approximate randomization (Noreen 1989). The two-sided p-value is the share
    of differences at least as large when both predictions of a row are exchanged with probability 1/2.

    Exact except for the number of resamples; never below 1 / (num_resamples + 1). Both systems must have the same
    number of runs.
    """
    first, second = measure.exchanged(np.random.default_rng(seed), num_resamples)
    whole = measure.whole()
    as_large = np.abs(first - second) >= abs(whole[0] - whole[1]) - _ROUNDING
    return float((np.sum(as_large) + 1) / (num_resamples + 1))


def half_interval(
    row: Benchmark,
    metric: str,
    first: Sequence[Records],
    second: Sequence[Records],
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Bootstrap the interval of a system's mean score on some rows minus its mean score on other rows.

    `first` and `second` are the records of the same runs on the two sets of rows, which are resampled independently.
    """
    generator = np.random.default_rng(seed)
    values = [
        measure_of(row, metric, runs, runs[:1]).resampled(generator, num_resamples)[: len(runs)].mean(axis=0)
        for runs in (first, second)
    ]
    return _percentiles(values[0] - values[1])


def seed_test(first: Mapping[Any, float], second: Mapping[Any, float]) -> SeedTest | None:
    """Run a two-sided t-test of the scores by seed, with the interval of first minus second.

    The test is paired if both systems have the same seeds (which determine the order of rows and the initial weights
    of the head), else Welch's. Returns None if a system has one seed, because its variation is unknown. Without any
    variation, the t-test is undefined; the p-value is then that of exchanging signs (or runs), which reflects the
    number of runs.
    """
    if min(len(first), len(second)) < 2:
        return None
    if set(first) == set(second):
        count = len(first)
        differences = [first[seed] - second[seed] for seed in sorted(first)]
        error = statistics.stdev(differences) / math.sqrt(count)
        return _t_test("paired", statistics.fmean(differences), error, count - 1, 2**count)
    variances = [statistics.variance(values.values()) / len(values) for values in (first, second)]
    error, freedom = combined_error(
        (math.sqrt(variance), len(values) - 1) for variance, values in zip(variances, (first, second)) if variance
    )
    mean = statistics.fmean(first.values()) - statistics.fmean(second.values())
    return _t_test("welch", mean, error, freedom if error else 1.0, math.comb(len(first) + len(second), len(first)))


def _t_test(test: str, mean: float, error: float, freedom: float, num_orders: int) -> SeedTest:
    from scipy.special import stdtr  # scipy.stats takes a second to import

    if error > _ROUNDING:
        p = 2.0 * float(stdtr(freedom, -abs(mean) / error))
    else:
        p = 1.0 if abs(mean) <= _ROUNDING else 2.0 / num_orders
    half = t_quantile(0.5 + CONFIDENCE / 2, freedom) * error
    return SeedTest(test, mean, mean - half, mean + half, p, error, freedom)


def combined_error(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Combine the standard errors and degrees of freedom (Satterthwaite 1946) of independent terms of a sum."""
    parts = list(parts)
    variance = sum(error**2 for error, _ in parts)
    spread = sum(error**4 / freedom for error, freedom in parts)
    return math.sqrt(variance), variance**2 / spread if spread else math.inf


def t_quantile(probability: float, freedom: float) -> float:
    """Compute a quantile of Student's t distribution (the normal distribution for infinite degrees of freedom)."""
    from scipy.special import ndtri, stdtrit

    return float(ndtri(probability) if math.isinf(freedom) else stdtrit(freedom, probability))
