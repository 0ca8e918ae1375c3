"""From runs to a cell: the recipe that is best on dev, and the spread of its seeds.

The recipe is chosen as the paper chooses it, on the dev split, by the mean of the headline metric over *all* its
seeds: one that often collapses is not chosen for the seed that did not. The cell then reports the seeds that learned
something. A degenerate run (one answer for every row) is left out of mean and deviation and counted, never
silently; only when every run of every recipe is degenerate does the cell stand on degenerate runs, and says so.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.leaderboard.columns import GLUE_AVERAGE
from tasks.leaderboard.inputs import FinetuneResult

DIGITS = 4  # of a score in leaderboard.json; the paper prints one


@dataclass(frozen=True)
class Cell:
    """One encoder on one benchmark."""

    recipe: dict[str, Any]
    """The chosen recipe."""
    runs: list[FinetuneResult]
    """The runs that count, by seed."""
    degenerate: list[FinetuneResult]
    """The chosen recipe's runs that are left out (none when `collapsed`)."""
    num_recipes: int
    """Recipes that it was chosen from."""
    collapsed: bool
    """Every run of every recipe is degenerate."""
    jobs: tuple[str, ...] = ()
    """The digests of all runs of all recipes."""

    @property
    def headline(self) -> str:
        """The metric that speaks for the benchmark."""
        return self.runs[0].headline.metric

    @property
    def best_run(self) -> FinetuneResult:
        """The run with the highest headline score (the lowest seed of equals)."""
        return max(self.runs, key=lambda run: (run.headline.value, -run.seed))

    def scores(self) -> dict[str, dict[str, float | int | None]]:
        """metric → mean, std (None for one run), median, best and num_runs over the runs that count."""
        shared = [metric for metric in self.runs[0].scores if all(metric in run.scores for run in self.runs)]
        return {metric: summarise(run.scores[metric] for run in self.runs) for metric in shared}

    def record(self) -> dict[str, Any]:
        """What leaderboard.json tells of the cell beside its scores."""
        first = self.runs[0]
        return {
            "recipe": self.recipe,
            "num_recipes": self.num_recipes,
            "seeds": [run.seed for run in self.runs],
            "values": [rounded(run.headline.value) for run in self.runs],
            "runs": [run.digest for run in self.runs],
            "jobs": list(self.jobs),
            "num_degenerate": len(self.runs) if self.collapsed else len(self.degenerate),
            "all_degenerate": self.collapsed,
            "best_run": self.best_run.digest,
            "num_train_rows": first.num_train_rows,
            "num_dev_rows": first.num_dev_rows,
            "num_all_train_rows": first.num_all_train_rows,
            "num_all_dev_rows": first.num_all_dev_rows,
            "num_skipped_rows": first.num_skipped_rows,
            "dev_digest": first.dev_digest,
        }


def choose(jobs: Sequence[FinetuneResult]) -> Cell:
    """The cell that `jobs` (all runs of one encoder on one benchmark, at least one) make."""
    assert jobs, "a cell without runs is missing, not empty"
    recipes: dict[str, list[FinetuneResult]] = {}
    for job in jobs:
        recipes.setdefault(json.dumps(job.recipe, sort_keys=True), []).append(job)
    collapsed = all(job.degenerate for job in jobs)
    name = max(sorted(recipes), key=lambda name: _merit(recipes[name]))  # the first by name of equals
    chosen = sorted(recipes[name], key=lambda job: (job.seed, job.digest))
    return Cell(
        recipe=chosen[0].recipe,
        runs=chosen if collapsed else [job for job in chosen if not job.degenerate],
        degenerate=[] if collapsed else [job for job in chosen if job.degenerate],
        num_recipes=len(recipes),
        collapsed=collapsed,
        jobs=tuple(sorted(job.digest for job in jobs)),
    )


def _merit(runs: Sequence[FinetuneResult]) -> tuple[bool, float, int]:
    """How a recipe ranks: some seed learned something, then the mean over all its seeds, then how many learned."""
    healthy = sum(not run.degenerate for run in runs)
    return healthy > 0, statistics.fmean(run.headline.value for run in runs), healthy


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
