"""Tests over dev rows: would the difference be there on other rows of the same kind? The runs are taken as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.stats.measures import Measure

NUM_RESAMPLES = 10_000
CONFIDENCE = 0.95
_ROUNDING = 1e-9  # points by which equal differences may differ


def paired_bootstrap(
    measure: Measure, num_resamples: int = NUM_RESAMPLES, seed: int = 0, confidence: float = CONFIDENCE
) -> dict[str, Any]:
    """The percentile interval of first minus second, in points, over rows drawn with replacement.

    Both systems are judged on the same drawn rows. `p` is the two-sided p-value that belongs to the interval: twice
    the share of resamples on the other side of 0.
    """
    generator = np.random.default_rng(seed)
    first, second = measure.resampled(generator, num_resamples)
    differences = first - second
    whole = measure.whole()
    low, high = np.quantile(differences, [(1 - confidence) / 2, (1 + confidence) / 2])
    tail = min(int(np.sum(differences <= _ROUNDING)), int(np.sum(differences >= -_ROUNDING)))
    return {
        "difference": whole[0] - whole[1],
        "low": float(low),
        "high": float(high),
        "error": float(np.std(differences)),
        "p": min(1.0, 2.0 * (tail + 1) / (num_resamples + 1)),
        "num_rows": measure.num_rows,
        "num_resamples": num_resamples,
    }


def randomisation_test(measure: Measure, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> float:
    """The two-sided p-value of "both systems are the same" by approximate randomisation (Noreen 1989): how often a
    difference as large comes when both answers to a row are exchanged by a coin.

    Exact but for the number of resamples; never below 1 / (num_resamples + 1). Both systems must have as many runs.
    """
    first, second = measure.exchanged(np.random.default_rng(seed), num_resamples)
    whole = measure.whole()
    as_large = np.abs(first - second) >= abs(whole[0] - whole[1]) - _ROUNDING
    return float((np.sum(as_large) + 1) / (num_resamples + 1))
