"""Giving up grid points after their first seeds.

The decision is a function of the first seeds' results alone, so a run that was killed decides the same when it goes on.
A point that is given up is out of the choice of the best on dev altogether: its mean of few seeds is not held against
others' means of all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tasks.params.finetune import PruneParams

Result = dict[str, Any]


def surviving(points: Sequence[Sequence[Result]], prune: PruneParams) -> set[int]:
    """Which grid points go on; `points` are the results of each one's first seeds."""
    merits = [_merit(results) for results in points]
    order = sorted(range(len(points)), key=lambda number: merits[number], reverse=True)
    best = merits[order[0]]
    kept = set(order[: math.ceil(prune.keep * len(points))])
    near = {number for number in order if merits[number][0] == best[0] and merits[number][1] >= best[1] - prune.margin}
    return kept | near


def _merit(results: Sequence[Result]) -> tuple[bool, float, str]:
    """Points that learned something before those that did not, then the mean of the headline; equal ones by digest."""
    healthy = not all(result["degenerate"] for result in results)
    mean = statistics.fmean(result["headline"]["value"] for result in results)
    return healthy, mean, min(result["digest"] for result in results)


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
