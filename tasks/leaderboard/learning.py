"""The charts of learning: pre-training of every encoder, and fine-tuning in small multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.leaderboard import formatting
from tasks.leaderboard.charts import Line, Plot, line_plot, mean_line

Points = list[tuple[float, float]]

# metric of the pre-training curves → title, least range of the axis, factor to what is shown, how a value is written
_PRETRAINING = (
    ("mlm_loss", "Masked words: loss", None, 1.0, "{:.2f}"),
    ("mlm_accuracy", "Masked words: accuracy, %", (0.0, 10.0), 100.0, "{:.1f} %"),
    ("nsp_accuracy", "Next sentence: accuracy, %", (50.0, 100.0), 100.0, "{:.1f} %"),
    ("sop_accuracy", "Sentence order: accuracy, %", (50.0, 100.0), 100.0, "{:.1f} %"),
)


def pretraining_plots(curves: Mapping[str, Any], styles: Mapping[str, str]) -> list[Plot]:
    """Loss and accuracies over steps: training as a line, held-out documents as dots."""
    plots = []
    for metric, title, y_range, factor, written in _PRETRAINING:
        lines, ends = [], []
        for name, curve in curves.items():
            train = _points(curve["train"], metric, factor)
            heldout = _points(curve["heldout"], metric, factor)
            lines.append(Line(styles[name], train))
            lines.append(Line(styles[name], heldout, "dots"))
            if heldout:
                ends.append(f"{name} {written.format(heldout[-1][1])} held-out")
            elif train:
                ends.append(f"{name} {written.format(train[-1][1])}")
        plot = line_plot(title, lines, summary=", ".join(ends), y_range=y_range, num_x_ticks=4, num_y_ticks=5)
        if plot:
            plots.append(plot)
    return plots


def finetuning_plots(
    curves: Mapping[str, Any], task: str, metric_title: str, styles: Mapping[str, str]
) -> dict[str, Plot | None]:
    """One benchmark: the dev score at each evaluation and the training loss, a thin line per seed, a thick mean."""
    scores: list[Line] = []
    losses: list[Line] = []
    for name, tasks in curves.items():
        runs = tasks.get(task, [])
        scores += _with_mean([_points(run["scores"], "score", 1) for run in runs], styles[name])
        losses += _with_mean([_points(run["loss"], "loss", 1) for run in runs], styles[name])
    low = min((y for line in losses for _, y in line.points), default=0.0)
    return {
        "score": line_plot(f"{metric_title} on dev", scores, num_y_ticks=2),
        "loss": line_plot("training loss", losses, y_range=(min(low, 0.0), low), num_y_ticks=2),
    }


def _with_mean(curves: Sequence[Points], style: str) -> list[Line]:
    curves = [curve for curve in curves if curve]
    if len(curves) < 2:
        return [Line(style, curve) for curve in curves]
    return [*(Line(style, curve, "thin") for curve in curves), Line(style, mean_line(curves))]


def _points(rows: Sequence[Mapping[str, float]], metric: str, factor: float) -> Points:
    return [(row["step"], factor * row[metric]) for row in rows if metric in row]


def heldout_summary(curve: Mapping[str, Any]) -> dict[str, str] | None:
    """The last held-out scores of one encoder in words; None for one that was not pre-trained."""
    last = next((row for row in reversed(curve["heldout"]) if "mlm_accuracy" in row), None)
    if last is None:
        return None
    more = [f"loss {last['mlm_loss']:.2f}"] if "mlm_loss" in last else []
    for metric, title in (("nsp_accuracy", "next sentence"), ("sop_accuracy", "sentence order")):
        if metric in last:
            more.append(f"{title} {formatting.percent(last[metric])}")
    more.append(f"{formatting.count(curve['num_steps'])} steps")
    if curve["num_tokens_seen"]:
        more.append(f"{formatting.count(curve['num_tokens_seen'])} tokens")
    return {"accuracy": formatting.percent(last["mlm_accuracy"]), "more": " · ".join(more)}
