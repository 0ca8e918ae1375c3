"""Giving up grid points after their first seeds.

The decision is a function of the first seeds' results alone, so a run that was killed decides the same when it goes on.
A point that is given up is out of the choice of the best on dev altogether: its mean of few seeds is not held against
others' means of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tasks.params.finetune import PruneParams
from tasks.stats.selection import RunResult, by_recipe, rank_of

Result = dict[str, Any]


def surviving(points: Sequence[Sequence[Result]], prune: PruneParams) -> set[int]:
    """Numbers of the grid points that continue; `points` are the results of each point's first seeds."""
    number_of = {result["digest"]: number for number, results in enumerate(points) for result in results}
    recipes = by_recipe(RunResult.parse(result, "result.json") for results in points for result in results)
    ranks = [rank_of(runs) for runs in recipes]
    kept = math.ceil(prune.keep * len(points))
    return {
        number_of[runs[0].digest]
        for place, (runs, rank) in enumerate(zip(recipes, ranks, strict=True))
        if place < kept or (rank.learned == ranks[0].learned and rank.mean >= ranks[0].mean - prune.margin)
    }


def undecided(jobs: Sequence[Sequence[Any]], prune: PruneParams | None) -> bool:
    """Whether a grid of `jobs` (points of seeds) is one that `prune` speaks of."""
    return prune is not None and len(jobs) > 1 and len(jobs[0]) > prune.after_seeds


def first_results(
    points: Sequence[Sequence[Any]], prune: PruneParams, result_of: Callable[[Any], Result | None]
) -> list[list[Result]] | None:
    """The results of every point's first seeds; None when one is not there yet."""
    found = [[result_of(job) for job in jobs[: prune.after_seeds]] for jobs in points]
    whole = [[result for result in results if result is not None] for results in found]
    return whole if all(len(results) == prune.after_seeds for results in whole) else None
