"""Scores of an encoder on a benchmark (mean and spread over the seeds of the chosen recipe), and averages.

A degenerate run (one answer for every row) is left out of mean and deviation and counted separately; only if every run
of every recipe is degenerate are degenerate runs scored, and the record says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping

from tasks.leaderboard.inputs import BenchmarkMetrics, FinetuneResult
from tasks.leaderboard.schema import CellRecord, EvaluationData, ScoreSummary
from tasks.stats.selection import SelectedRecipe


def cell_scores(cell: SelectedRecipe[FinetuneResult]) -> dict[str, ScoreSummary]:
    """metric → score over the runs that count"""
    shared = [metric for metric in cell.runs[0].scores if all(metric in run.scores for run in cell.runs)]
    return {metric: summarize(run.scores[metric] for run in cell.runs) for metric in shared}


def cell_record(cell: SelectedRecipe[FinetuneResult], metrics: BenchmarkMetrics) -> CellRecord:
    """Return the chosen recipe, its runs and the data; `metrics` is the file that the runs are from."""
    ensemble = metrics.ensemble
    if ensemble is not None and sorted(ensemble.seeds) != sorted(run.seed for run in cell.runs):
        ensemble = None  # of other runs than those shown
    return CellRecord(
        **cell.runs[0].model_dump(include={"recipe", *EvaluationData.model_fields}),  # equal in all runs
        num_recipes=cell.num_recipes,
        seeds=[run.seed for run in cell.runs],
        values=[rounded(run.headline.value) for run in cell.runs],
        runs=[run.digest for run in cell.runs],
        jobs=sorted(job.digest for job in (*metrics.jobs, *metrics.pruned)),
        num_degenerate=len(cell.runs) if cell.collapsed else len(cell.degenerate),
        all_degenerate=cell.collapsed,
        best_run=cell.best.digest,
        num_pruned=len(metrics.pruned),
        after=metrics.after,
        ensemble=None if ensemble is None else {name: rounded(value) for name, value in ensemble.scores.items()},
    )


def summarize(values: Iterable[float]) -> ScoreSummary:
    """Mean, sample deviation (None for one value), median, best and number of `values`."""
    numbers = list(values)
    return ScoreSummary(
        mean=rounded(statistics.fmean(numbers)),
        std=rounded(statistics.stdev(numbers)) if len(numbers) > 1 else None,
        median=rounded(statistics.median(numbers)),
        best=rounded(max(numbers)),
        num_runs=len(numbers),
    )


def rounded(value: float) -> float:
    """Round to the four decimals that leaderboard.json keeps (the paper prints one), without a negative zero."""
    return round(value, 4) + 0.0


Means = Mapping[str, Mapping[str, float]]
"""benchmark → metric → mean"""


def means_of(scores: Mapping[str, Mapping[str, ScoreSummary]]) -> Means:
    return {task: {metric: score.mean for metric, score in row.items()} for task, row in scores.items()}


def average(means: Means, columns: Collection[tuple[str, str]]) -> float | None:
    """Mean of `columns` (benchmark, metric); None if one is missing.

    Over headline metrics every benchmark counts once: MNLI's is the mean of matched and mismatched.
    """
    if not columns or any(metric not in means.get(benchmark, {}) for benchmark, metric in columns):
        return None
    return rounded(statistics.fmean(means[benchmark][metric] for benchmark, metric in columns))
