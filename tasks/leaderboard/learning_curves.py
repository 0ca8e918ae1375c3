"""Learning curves: thinned for leaderboard.json, and as charts of pre-training and fine-tuning."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.leaderboard import formatting, schema
from tasks.leaderboard.charts import Line, LineChart, Points, mean_line
from tasks.leaderboard.inputs import FinetuneResult, PretrainMetrics
from tasks.leaderboard.schema import FinetuneCurve, Leaderboard, PretrainCurve
from tasks.leaderboard.scores import rounded
from tasks.stats.selection import SelectedRecipe

NUM_PRETRAINING_POINTS = 160
NUM_FINETUNING_POINTS = 40


# metric of pre-training → title, least range of the axis, factor to what is shown, format of a value
_PRETRAINING: tuple[tuple[str, str, tuple[float, float] | None, float, str], ...] = (
    ("mlm_loss", "Masked words: loss", None, 1.0, "{:.2f}"),
    ("mlm_accuracy", "Masked words: accuracy, %", (0.0, 10.0), 100.0, "{:.1f} %"),
    ("nsp_accuracy", "Next sentence: accuracy, %", (50.0, 100.0), 100.0, "{:.1f} %"),
    ("sop_accuracy", "Sentence order: accuracy, %", (50.0, 100.0), 100.0, "{:.1f} %"),
)


def pretraining_curves(metrics: PretrainMetrics) -> PretrainCurve:
    """Thin the learning curve of an encoder."""
    return PretrainCurve(
        num_steps=metrics.num_steps,
        num_tokens_seen=metrics.num_tokens_seen,
        train=thin(metrics.curve, NUM_PRETRAINING_POINTS),
        heldout=thin(metrics.heldout, NUM_PRETRAINING_POINTS),
    )


def finetuning_curves(cell: SelectedRecipe[FinetuneResult]) -> list[FinetuneCurve]:
    """Training loss and headline scores on dev of each run that counts."""
    return [
        FinetuneCurve(seed=run.seed, loss=thin(run.curve, NUM_FINETUNING_POINTS), scores=_evaluations(run))
        for run in cell.runs
    ]


def _evaluations(run: FinetuneResult) -> schema.Points:
    metric = run.headline.metric
    return [
        {"step": row["step"], "score": rounded(row["scores"][metric])}
        for row in run.evaluations
        if "step" in row and metric in row.get("scores", {})
    ]


def thin(rows: Sequence[dict[str, Any]], num_points: int) -> schema.Points:
    """Reduce to at most `num_points` points, each the mean of consecutive rows, at their last step.

    Values that are not finite numbers (a diverged loss) are left out of the means.
    """
    size = max(1, math.ceil(len(rows) / num_points))
    thinned: schema.Points = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        point: dict[str, int | float] = {"step": part[-1].get("step", start + len(part))}
        for metric in sorted({key for row in part for key in row} - {"step"}):
            values = [row[metric] for row in part if _finite(row.get(metric))]
            if values:
                point[metric] = _short(statistics.fmean(values))
        thinned.append(point)
    return thinned


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _short(value: float) -> float:
    """Round to five significant digits."""
    return float(f"{value:.5g}")


def pretraining_charts(board: Leaderboard, styles: Mapping[str, str]) -> list[LineChart]:
    """Loss and accuracies over steps: training as a line, held-out documents as dots; without empty charts."""
    charts = []
    for metric, title, y_range, factor, written in _PRETRAINING:
        lines, ends = [], []
        for name, curve in board.curves.pretrain.items():
            train, heldout = _points(curve.train, metric, factor), _points(curve.heldout, metric, factor)
            lines.append(Line(styles[name], train, name=name))
            lines.append(Line(styles[name], heldout, "dots", f"{name}, held-out"))
            if heldout:
                ends.append(f"{name} {written.format(heldout[-1][1])} held-out")
            elif train:
                ends.append(f"{name} {written.format(train[-1][1])}")
        if ends:
            charts.append(LineChart(title, lines, ", ".join(ends), y_range))
    return charts


def finetuning_charts(board: Leaderboard, task: str, styles: Mapping[str, str]) -> tuple[LineChart, LineChart]:
    """Dev score at each evaluation, and training loss: a thin line per seed, and a thick mean."""
    scores: list[Line] = []
    losses: list[Line] = []
    for name, curves in board.curves.finetune.items():
        runs = curves.get(task, [])
        scores += _with_mean([_points(run.scores, "score", 1) for run in runs], styles[name])
        losses += _with_mean([_points(run.loss, "loss", 1) for run in runs], styles[name])
    low = min((y for line in losses for _, y in line.points), default=0.0)
    return (
        LineChart(f"{formatting.metric_title(board.headline[task])} on dev", scores),
        LineChart("training loss", losses, y_range=(min(low, 0.0), low)),
    )


def _with_mean(curves: Sequence[Points], style: str) -> list[Line]:
    curves = [curve for curve in curves if curve]
    if len(curves) < 2:
        return [Line(style, curve) for curve in curves]
    return [*(Line(style, curve, "thin") for curve in curves), Line(style, mean_line(curves))]


def _points(rows: schema.Points, metric: str, factor: float) -> Points:
    return [(row["step"], factor * row[metric]) for row in rows if metric in row]


def heldout_summary(curve: PretrainCurve) -> dict[str, str] | None:
    """The last held-out scores of an encoder in words; None for one that was not pre-trained."""
    last = next((row for row in reversed(curve.heldout) if "mlm_accuracy" in row), None)
    if last is None:
        return None
    more = [f"loss {last['mlm_loss']:.2f}"] if "mlm_loss" in last else []
    for metric, title in (("nsp_accuracy", "next sentence"), ("sop_accuracy", "sentence order")):
        if metric in last:
            more.append(f"{title} {formatting.percent(last[metric])}")
    more.append(f"{formatting.count(curve.num_steps)} steps")
    if curve.num_tokens_seen:
        more.append(f"{formatting.count(curve.num_tokens_seen)} tokens")
    return {"accuracy": formatting.percent(last["mlm_accuracy"]), "more": " · ".join(more)}
