"""Scores of an encoder on a benchmark: mean and spread over the seeds of the chosen recipe, and averages.

A degenerate run (one answer for every row) is left out of mean and deviation and counted separately; only if every run
of every recipe is degenerate are degenerate runs scored, and the record says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tasks.leaderboard.columns import GLUE_AVERAGE
from tasks.leaderboard.inputs import BenchmarkMetrics, FinetuneResult
from tasks.stats.selection import Selection

DIGITS = 4  # of a score in leaderboard.json; the paper prints one


def cell_scores(cell: Selection[FinetuneResult]) -> dict[str, dict[str, float | int | None]]:
    """metric → mean, std (None for one run), median, best and num_runs over the runs that count."""
    shared = [metric for metric in cell.runs[0].scores if all(metric in run.scores for run in cell.runs)]
    return {metric: summarise(run.scores[metric] for run in cell.runs) for metric in shared}


def cell_record(cell: Selection[FinetuneResult], metrics: BenchmarkMetrics) -> dict[str, Any]:
    """What leaderboard.json contains about an encoder on a benchmark besides its scores."""
    first = cell.runs[0]
    ensemble = metrics.ensemble
    if ensemble is not None and sorted(ensemble.seeds) != sorted(run.seed for run in cell.runs):
        ensemble = None  # of other runs than those shown
    return {
        "recipe": first.recipe,
        "num_recipes": cell.num_recipes,
        "seeds": [run.seed for run in cell.runs],
        "values": [rounded(run.headline.value) for run in cell.runs],
        "runs": [run.digest for run in cell.runs],
        "jobs": sorted(job.digest for job in (*metrics.jobs, *metrics.pruned)),
        "num_degenerate": len(cell.runs) if cell.collapsed else len(cell.degenerate),
        "all_degenerate": cell.collapsed,
        "best_run": cell.best.digest,
        "num_train_rows": first.num_train_rows,
        "num_dev_rows": first.num_dev_rows,
        "num_all_train_rows": first.num_all_train_rows,
        "num_all_dev_rows": first.num_all_dev_rows,
        "num_skipped_rows": first.num_skipped_rows,
        "dev_digest": first.dev_digest,
        "num_pruned": len(metrics.pruned),
        "after": metrics.after,
        "ensemble": None if ensemble is None else {name: rounded(value) for name, value in ensemble.scores.items()},
    }


def summarise(values: Iterable[float]) -> dict[str, float | int | None]:
    """Mean, sample deviation (None for one value), median, best and number of `values`."""
    numbers = list(values)
    return {
        "mean": rounded(statistics.fmean(numbers)),
        "std": rounded(statistics.stdev(numbers)) if len(numbers) > 1 else None,
        "median": rounded(statistics.median(numbers)),
        "best": rounded(max(numbers)),
        "num_runs": len(numbers),
    }


def rounded(value: float) -> float:
    """`value` to the digits that leaderboard.json keeps, without a negative zero."""
    return round(value, DIGITS) + 0.0


Scores = Mapping[str, Mapping[str, Mapping[str, Any]]]


def average(scores: Scores, headline: Mapping[str, str]) -> float | None:
    """The mean of the headline metrics over all benchmarks of `headline`; None when one is missing.

    Every benchmark counts once: MNLI's headline is the mean of matched and mismatched.
    """
    return _mean_of(scores, list(headline.items()))


def glue_average(scores: Scores) -> float | None:
    """The average as Table 1 forms it: nine columns, MNLI-m and MNLI-mm counted separately, WNLI left out."""
    return _mean_of(scores, GLUE_AVERAGE)


def _mean_of(scores: Scores, cells: Sequence[tuple[str, str]]) -> float | None:
    if not cells or any(metric not in scores.get(benchmark, {}) for benchmark, metric in cells):
        return None
    return rounded(statistics.fmean(scores[benchmark][metric]["mean"] for benchmark, metric in cells))
