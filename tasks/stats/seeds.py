"""Tests over seeds (would another training show the difference too?), and Holm's correction over benchmarks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tasks.stats.resampling import CONFIDENCE

_NO_SPREAD = 1e-9  # points


def seed_test(
    first: Mapping[int, float], second: Mapping[int, float], confidence: float = CONFIDENCE
) -> dict[str, Any] | None:
    """A two-sided t-test of the scores by seed, and the interval of first minus second.

    Paired where both systems have the same seeds (they share the order of rows and the head's first weights), else
    Welch's. None where a system has one seed: one run tells nothing of the spread of runs. Where no spread is left
    to divide by, the t-test is undefined; the p-value is then that of exchanging signs (or runs), which is honest
    about how few runs there are.
    """
    if min(len(first), len(second)) < 2:
        return None
    if set(first) == set(second):
        count = len(first)
        differences = [first[seed] - second[seed] for seed in sorted(first)]
        error = statistics.stdev(differences) / math.sqrt(count)
        return _test("paired", statistics.fmean(differences), error, count - 1, 2**count, confidence)
    variances = [statistics.variance(values.values()) / len(values) for values in (first, second)]
    error = math.sqrt(sum(variances))
    terms = [variance**2 / (len(values) - 1) for variance, values in zip(variances, (first, second))]
    freedom = error**4 / sum(terms) if any(terms) else 1.0
    mean = statistics.fmean(first.values()) - statistics.fmean(second.values())
    return _test("welch", mean, error, freedom, math.comb(len(first) + len(second), len(first)), confidence)


def _test(
    kind: Literal["paired", "welch"], mean: float, error: float, freedom: float, num_orders: int, confidence: float
) -> dict[str, Any]:
    from scipy.special import stdtr, stdtrit  # scipy.stats takes a second to import

    if error > _NO_SPREAD:
        p = 2.0 * float(stdtr(freedom, -abs(mean) / error))
    else:
        p = 1.0 if abs(mean) <= _NO_SPREAD else 2.0 / num_orders
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * error
    return {
        "test": kind,
        "difference": mean,
        "low": mean - half,
        "high": mean + half,
        "p": p,
        "error": error,
        "degrees_of_freedom": freedom,
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) corrected p-values, in the order given: below α they keep the chance of any false claim below α."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, p_values[place] * (len(p_values) - rank)))
        corrected[place] = largest
    return corrected
