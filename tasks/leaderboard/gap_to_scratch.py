"""How far a pre-trained encoder leads one from scratch, with a 95 % interval.

Paired over benchmarks: each benchmark gives one difference of headline means, on the same split, and Student's t over
these differences gives the interval. It answers "would another draw of benchmarks show it too"; the spread of the seeds
is told per benchmark.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.leaderboard.scores import rounded

CONFIDENCE = 0.95
LARGE_NUM_TRAIN_ROWS = 1000  # below it a dev score says little about the encoder


def lead_between(
    pretrained: Mapping[str, Any], scratch: Mapping[str, Any], headline: Mapping[str, str]
) -> dict[str, Any]:
    """The lead of one measured system over another over the benchmarks that both have.

    `all` is over these benchmarks, `large` over those with at least LARGE_NUM_TRAIN_ROWS training rows; each holds
    mean, low, high (the interval; None below two benchmarks), num_benchmarks and num_ahead.
    """
    assert pretrained["split"] == scratch["split"], "a difference across splits means nothing"
    per_task: dict[str, dict[str, Any]] = {}
    for task, metric in headline.items():
        ours, theirs = (system["scores"].get(task, {}).get(metric) for system in (pretrained, scratch))
        if ours is None or theirs is None:
            continue
        per_task[task] = {
            "pretrained": ours["mean"],
            "scratch": theirs["mean"],
            "difference": rounded(ours["mean"] - theirs["mean"]),
            "standard_error": _standard_error(ours, theirs),
            "num_train_rows": min(system["cells"][task]["num_train_rows"] for system in (pretrained, scratch)),
        }
    large = [task for task, cell in per_task.items() if cell["num_train_rows"] >= LARGE_NUM_TRAIN_ROWS]
    return {
        "pretrained": pretrained["name"],
        "scratch": scratch["name"],
        "split": pretrained["split"],
        "confidence": CONFIDENCE,
        "per_task": per_task,
        "all": interval([cell["difference"] for cell in per_task.values()]),
        "large": {
            **interval([per_task[task]["difference"] for task in large]),
            "min_train_rows": LARGE_NUM_TRAIN_ROWS,
            "tasks": large,
        },
    }


def interval(differences: Sequence[float]) -> dict[str, Any]:
    """Mean and two-sided t interval of paired `differences` (points), and how many are above zero."""
    count = len(differences)
    mean = statistics.fmean(differences) if count else None
    low = high = None
    if mean is not None and count > 1:
        from scipy.special import stdtrit  # the quantile alone; scipy.stats takes a second to import

        quantile = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
        half = quantile * statistics.stdev(differences) / math.sqrt(count)
        low, high = rounded(mean - half), rounded(mean + half)
    return {
        "mean": None if mean is None else rounded(mean),
        "low": low,
        "high": high,
        "num_benchmarks": count,
        "num_ahead": sum(difference > 0 for difference in differences),
    }


def _standard_error(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float | None:
    """Of a difference of two means over seeds; None where one side has a single run."""
    if ours["std"] is None or theirs["std"] is None:
        return None
    variance = ours["std"] ** 2 / ours["num_runs"] + theirs["std"] ** 2 / theirs["num_runs"]
    return rounded(math.sqrt(variance))
