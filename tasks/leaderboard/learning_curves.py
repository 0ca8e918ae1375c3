"""Learning curves as data: thinned to what a page can draw, by means over stretches of steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from tasks.leaderboard.inputs import FinetuneResult, PretrainMetrics
from tasks.leaderboard.scores import rounded
from tasks.stats.selection import Selection

NUM_PRETRAINING_POINTS = 160
NUM_FINETUNING_POINTS = 40


def pretraining_curves(metrics: PretrainMetrics) -> dict[str, Any]:
    """Training and held-out rows of one encoder, {step, metric: value}, and its totals."""
    return {
        "num_steps": metrics.num_steps,
        "num_tokens_seen": metrics.num_tokens_seen,
        "train": thin(metrics.curve, NUM_PRETRAINING_POINTS),
        "heldout": thin(metrics.heldout, NUM_PRETRAINING_POINTS),
    }


def finetuning_curves(cell: Selection[FinetuneResult]) -> list[dict[str, Any]]:
    """Per run of the chosen recipe: its training loss and the headline score on dev at each evaluation."""
    return [
        {
            "seed": run.seed,
            "loss": thin(run.curve, NUM_FINETUNING_POINTS),
            "scores": _evaluations(run),
        }
        for run in cell.runs
    ]


def _evaluations(run: FinetuneResult) -> list[dict[str, float]]:
    metric = run.headline.metric
    return [
        {"step": row["step"], "score": rounded(row["scores"][metric])}
        for row in run.evaluations
        if "step" in row and metric in row.get("scores", {})
    ]


def thin(rows: Sequence[dict[str, Any]], num_points: int) -> list[dict[str, float]]:
    """At most `num_points` rows: each the mean of a stretch of rows, at the stretch's last step.

    Values that are no finite numbers are left out of the means (a diverged loss has none).
    """
    size = max(1, math.ceil(len(rows) / num_points))
    thinned = []
    for start in range(0, len(rows), size):
        stretch = rows[start : start + size]
        point: dict[str, float] = {"step": stretch[-1].get("step", start + len(stretch))}
        for metric in sorted({key for row in stretch for key in row} - {"step"}):
            values = [row[metric] for row in stretch if _finite(row.get(metric))]
            if values:
                point[metric] = _short(statistics.fmean(values))
        thinned.append(point)
    return thinned


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _short(value: float) -> float:
    """Five significant digits: a curve on a page has no more."""
    return float(f"{value:.5g}")
