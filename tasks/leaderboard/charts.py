"""Charts of the leaderboard: their data, their geometry on the page, and PNG files for MLflow.

Positions are in percent of the plot, so that the browser can stretch it freely.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from model.common.files import write_bytes
from tasks.leaderboard import formatting, schema
from tasks.leaderboard.schema import BoardModel, GapToScratch, Leaderboard, MeasuredSystem, QuotedSystem, System
from tasks.project.progress import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_QUOTED = 5  # maximum number of the paper's systems per bar chart; the table has all of them
NUM_COLORS = {"p": 8, "x": 4}  # of each kind in style.css
Points = list[tuple[float, float]]
# metric of pre-training → title, values that the axis covers, factor to what is shown, format of a value
_PRETRAINING: tuple[tuple[str, str, tuple[float, ...], float, str], ...] = (
    ("mlm_loss", "Masked words: loss", (), 1.0, "{:.2f}"),
    ("mlm_accuracy", "Masked words: accuracy, %", (0.0, 10.0), 100.0, "{:.1f} %"),
    ("nsp_accuracy", "Next sentence: accuracy, %", (50.0, 100.0), 100.0, "{:.1f} %"),
    ("sop_accuracy", "Sentence order: accuracy, %", (50.0, 100.0), 100.0, "{:.1f} %"),
)
PRETRAINING_METRICS = tuple(metric for metric, *_ in _PRETRAINING)
_NAME_LENGTH = 28  # maximum length of a name in a legend


@dataclass(frozen=True)
class Scale:
    """Linear scale from values to 0..100 percent, with two decimals."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        return round(100 * (value - self.low) / (self.high - self.low), 2)


def score_scale(values: Sequence[float]) -> Scale:
    """Scale from 0, or from below the lowest negative value, to 100."""
    lowest = min([0.0, *values])
    return Scale(10 * math.floor(lowest / 10), 100)


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Return round values that cover low..high in about `wanted` equal steps."""
    if high - low <= 1e-6 * max(1.0, abs(high)):  # the curve is flat up to rounding
        high = low + 1
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


@dataclass(frozen=True)
class Line:
    """A curve, or a set of dots, in data units."""

    style: str
    """CSS class of the color."""
    points: Points
    weight: Literal["thick", "thin", "dots"] = "thick"
    name: str = ""
    """Label in a legend."""


@dataclass(frozen=True)
class LineChart:
    title: str
    lines: list[Line]
    summary: str = ""
    y_values: tuple[float, ...] = ()
    """Values that the y axis must cover in addition to the data."""


def line_plot(chart: LineChart, num_x_ticks: int = 3, num_y_ticks: int = 3) -> dict[str, Any] | None:
    """Compute the geometry of a chart, for the template; None if no line has a point."""
    points = [point for line in chart.lines for point in line.points]
    if not points:
        return None
    y_values = [*(y for _, y in points), *chart.y_values]
    y_ticks = ticks(min(y_values), max(y_values), num_y_ticks)
    x_end = max(x for x, _ in points) or 1
    x_scale, y_scale = Scale(0, x_end), Scale(y_ticks[0], y_ticks[-1])
    x_ticks = [value for value in ticks(0, x_end, num_x_ticks) if value <= x_end]
    return {
        "title": chart.title,
        "summary": chart.summary,
        "paths": [_path(line, x_scale, y_scale) for line in chart.lines if line.points],
        "x_ticks": [(x_scale(value), formatting.count(value)) for value in x_ticks],
        "y_ticks": [(y_scale(value), f"{value:g}") for value in y_ticks],
    }


def _path(line: Line, x_scale: Scale, y_scale: Scale) -> tuple[str, str]:
    """Return CSS classes and the path in a 100 × 100 box whose y axis points down. Dots and single-point curves are
    strokes of length 0 with round ends."""
    positions = [f"{x_scale(x):g} {round(100 - y_scale(y), 2):g}" for x, y in line.points]
    if line.weight == "dots" or (line.weight == "thick" and len(positions) == 1):
        return f"{line.style} dots", "".join(f"M{position}h0" for position in positions)
    return f"{line.style} {line.weight}", "M" + "L".join(positions)


def pretraining_charts(board: Leaderboard, styles: Mapping[str, str]) -> list[LineChart]:
    """Create charts of loss and accuracies over steps: lines for training, dots for held-out documents."""
    charts = []
    for metric, title, y_values, factor, written in _PRETRAINING:
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
            charts.append(LineChart(title, lines, ", ".join(ends), y_values))
    return charts


def finetuning_charts(board: Leaderboard, task: str, styles: Mapping[str, str]) -> tuple[LineChart, LineChart]:
    """Create charts of dev score and training loss: a thin line per seed, and a thick mean."""
    scores: list[Line] = []
    losses: list[Line] = []
    for name, curves in board.curves.finetune.items():
        runs = curves.get(task, [])
        scores += _with_mean([_points(run.scores, "score", 1) for run in runs], styles[name])
        losses += _with_mean([_points(run.loss, "loss", 1) for run in runs], styles[name])
    return (
        LineChart(f"{formatting.metric_title(board.headline[task])} on dev", scores),
        LineChart("training loss", losses, y_values=(0.0,)),
    )


def _with_mean(curves: Sequence[Points], style: str) -> list[Line]:
    curves = [curve for curve in curves if curve]
    if len(curves) < 2:
        return [Line(style, curve) for curve in curves]
    return [*(Line(style, curve, "thin") for curve in curves), Line(style, mean_line(curves))]


def mean_line(curves: Sequence[Points]) -> Points:
    """Average over seeds at the steps that all curves share."""
    values = [dict(curve) for curve in curves]
    shared = [step for step in values[0] if all(step in curve for curve in values)]
    return [(step, sum(curve[step] for curve in values) / len(values)) for step in shared]


def _points(rows: schema.Points, metric: str, factor: float) -> Points:
    return [(row["step"], factor * row[metric]) for row in rows if metric in row]


def styles_of(board: BoardModel) -> dict[str, str]:
    """Assign CSS classes to systems: p0.. pre-trained (by us or others), x0.. from scratch, in order."""
    numbers = {"p": 0, "x": 0}
    styles = {}
    for system in board.measured:
        letter = "x" if system.kind == "scratch" else "p"
        styles[system.name] = f"{letter}{numbers[letter] % NUM_COLORS[letter]}"
        numbers[letter] += 1
    return styles | {system.name: "quote" for system in board.quoted}


@dataclass(frozen=True)
class ScoreBar:
    name: str
    kind: str
    split: str
    style: str
    value: float
    spread: float
    """Standard deviation; 0 for a single run."""
    tip: str


@dataclass(frozen=True)
class BarChart:
    """Scores of several systems on a benchmark, or their averages."""

    task: str
    """Benchmark; empty for an average."""
    title: str
    subtitle: str
    bars: list[ScoreBar]
    majority: float | None
    """Score of the majority label."""


def bar_plot(chart: BarChart) -> dict[str, Any]:
    """Compute the geometry of a bar chart, for the template."""
    majority = chart.majority
    scale = score_scale([*(bar.value for bar in chart.bars), *([majority] if majority is not None else [])])
    zero = scale(0)
    rows = []
    for bar in chart.bars:
        at = scale(bar.value)
        ends = scale(max(bar.value - bar.spread, scale.low)), scale(min(bar.value + bar.spread, 100))
        place = {"left": min(at, zero), "width": round(abs(at - zero), 2), "whisker": ends if bar.spread else None}
        rows.append({**vars(bar), **place, "text": formatting.score(bar.value)})
    return {**vars(chart), "rows": rows, "majority": None if majority is None else scale(majority)}


def bar_charts(board: Leaderboard) -> list[BarChart]:
    """Create bar charts in the order of the page: existing averages, then every benchmark."""
    styles = styles_of(board)

    def bar(system: System, value: float, spread: float, tip: str) -> ScoreBar:
        name = system.paper_name if isinstance(system, QuotedSystem) else system.name
        return ScoreBar(name, system.kind, system.split, styles[system.name], value, spread, tip)

    charts = []
    for key, title, subtitle, majority in (
        (
            "average",
            "Average",
            f"{len(board.tasks)} benchmark{'s' if len(board.tasks) != 1 else ''}",
            board.baselines["majority"].average,
        ),
        ("glue_average", "GLUE", "average as Table 1", None),
    ):
        bars = []
        for system in [*board.measured, *(board.quoted if key == "glue_average" else [])]:
            value = getattr(system, key)
            if value is not None:
                tip = f"{system.name}, {system.split}: {title} {formatting.score(value)}, {subtitle}"
                bars.append(bar(system, value, 0.0, tip))
        if any(one.kind != "quoted" for one in bars):
            charts.append(BarChart("", title, subtitle, bars, majority))
    for task in board.tasks:
        metric = board.headline[task]
        bars = [
            bar(system, score.mean, score.std or 0.0, cell_tip(board, system, task, metric))
            for system in [*board.measured, *_quoted(board, task, metric)]
            if (score := system.score(task, metric))
        ]
        charts.append(
            BarChart(task, board.titles[task], formatting.metric_title(metric), bars, board.majority.get(task))
        )
    return charts


def _quoted(board: Leaderboard, task: str, metric: str) -> list[QuotedSystem]:
    """Select each of the paper's systems once, on dev if the paper reports dev scores."""
    found: dict[str, QuotedSystem] = {}
    for one in board.quoted:
        if one.score(task, metric) and (one.paper_name not in found or one.split == "dev"):
            found[one.paper_name] = one
    return list(found.values())[:NUM_QUOTED]


def gap_rows(gap: GapToScratch, majority: Mapping[str, float]) -> dict[str, Any]:
    """Compute the geometry of the gaps to scratch, largest first: scratch, pre-trained and majority label."""
    scale = score_scale([value for one in gap.per_task.values() for value in (one.pretrained, one.scratch)])
    rows = []
    for task, one in sorted(gap.per_task.items(), key=lambda item: -item[1].difference):
        tip = f"{gap.pretrained} {formatting.score(one.pretrained)}, {gap.scratch} {formatting.score(one.scratch)}"
        if task in majority:
            tip += f", majority {formatting.score(majority[task])}"
        if one.standard_error is not None:
            tip += f"; difference {formatting.signed(one.difference)} ± {one.standard_error:.1f} (standard error)"
        row = {"task": task, "difference": one.difference, "tip": tip}
        row |= {"scratch": scale(one.scratch), "pretrained": scale(one.pretrained)}
        rows.append(row | {"majority": scale(majority[task]) if task in majority else None})
    marks = [(scale(value), formatting.score(value)[:-2]) for value in ticks(scale.low, 100, 4)]
    return {"rows": rows, "ticks": marks}


def cell_tip(board: BoardModel, system: System, task: str, metric: str) -> str:
    parts = []
    for name, score in sorted(system.scores[task].items(), key=lambda item: item[0] != metric):
        title = formatting.metric_title(name)
        parts.append(f"{title} {formatting.score(score.mean)} {formatting.deviation(score.std)}".strip())
    score = system.scores[task][metric]
    if isinstance(system, QuotedSystem):
        parts.append(f"quoted from {system.source[task]} of the paper")
    elif isinstance(system, MeasuredSystem):
        cell = system.cells[task]
        if len(cell.seeds) > 1:
            median, best = formatting.score(score.median), formatting.score(score.best)
            parts.append(f"{formatting.seeds([cell])}, median {median}, best {best}")
        else:
            parts.append(f"one run, seed {cell.seeds[0]}")
        parts += [formatting.recipe(cell.recipe), formatting.selection(cell), formatting.coverage(cell)]
        if cell.all_degenerate:
            parts.append("every run gave one answer for all rows")
        elif cell.num_degenerate:
            parts.append(f"{cell.num_degenerate} degenerate and counted ({formatting.learned(cell)})")
    return f"{system.name} on {board.titles[task]}, {system.split}: " + "; ".join(parts)


def draw_plots(board: Leaderboard, out_dir: Path) -> None:
    """Write scores.png and pretraining.png into `out_dir`; equal boards give equal bytes.

    pretraining.png is omitted if no encoder has a pre-training curve.
    """
    styles = styles_of(board)
    figures = {"scores.png": _scores([chart for chart in bar_charts(board) if chart.task], styles)}
    curves = pretraining_charts(board, styles)
    if curves:
        figures["pretraining.png"] = _pretraining(curves)
    for name, figure in figures.items():
        content = BytesIO()
        figure.savefig(content, format="png", dpi=150, metadata={"Software": None})  # without matplotlib's version
        write_bytes(out_dir / name, content.getvalue())


def _scores(charts: list[BarChart], styles: Mapping[str, str]) -> Figure:
    from matplotlib.figure import Figure  # a heavy import

    colors = _colors()
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    axes = figure.subplots()
    names = [name for name, style in styles.items() if style != "quote"]
    width = 0.78 / max(1, len(names))
    for number, name in enumerate(names):
        shift = (number - (len(names) - 1) / 2) * width
        found = [
            (column + shift, bar)
            for column, chart in enumerate(charts)
            for bar in chart.bars
            if (bar.name, bar.style) == (name, styles[name])
        ]
        axes.bar(
            [position for position, _ in found],
            [bar.value for _, bar in found],
            width * 0.92,
            yerr=[bar.spread for _, bar in found],
            color=colors[styles[name]],
            label=shortened(name, _NAME_LENGTH),
            error_kw={"elinewidth": 1, "ecolor": colors["ink"]},
        )
    line: dict[str, Any] = {"color": colors["soft"], "linestyle": (0, (2, 2)), "linewidth": 1.2}
    diamond: dict[str, Any] = {"marker": "D", "markersize": 5, "linestyle": "none"}
    diamond |= {"color": "none", "markeredgecolor": colors["soft"]}
    labels = {"majority": "majority answer", "quoted": "BERT base, quoted"}
    for column, chart in enumerate(charts):
        if chart.majority is not None:
            axes.hlines(chart.majority, column - 0.45, column + 0.45, label=labels.pop("majority", ""), **line)
        value = next((bar.value for bar in chart.bars if bar.kind == "quoted" and bar.name == "BERT base"), None)
        if value is not None:
            axes.plot(column, value, label=labels.pop("quoted", ""), **diamond)
    axes.set_xticks(range(len(charts)), [chart.title.replace(" ", "\n") for chart in charts])
    axes.set_ylabel("headline score")
    axes.set_ylim(top=100)
    _style_axes(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=4, frameon=False)
    return figure


def _pretraining(charts: list[LineChart]) -> Figure:
    from matplotlib.figure import Figure

    colors = _colors()
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        for line in chart.lines:
            if line.points:
                dots = line.weight == "dots"
                style: dict[str, Any] = {"marker": "o", "linestyle": "none"} if dots else {"linewidth": 1.8}
                steps, values = zip(*line.points)
                axes.plot(
                    steps,
                    values,
                    color=colors[line.style],
                    label=shortened(line.name, _NAME_LENGTH),
                    markersize=5,
                    **style,
                )
        axes.set_title(chart.title, fontsize=11, color=colors["ink"])
        axes.set_xlabel("steps")
        _style_axes(axes)
        axes.legend(frameon=False, fontsize=9)
    return figure


@cache
def _colors() -> dict[str, str]:
    css = (Path(__file__).parent / "assets" / "style.css").read_text(encoding="utf-8")
    return dict(reversed(re.findall(r"--(\w+): *(#\w+)", css)))  # keep the first value of each name


def _style_axes(axes: Any) -> None:
    colors = _colors()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(colors["rule"])
    axes.grid(axis="y", color=colors["rule"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=colors["soft"], length=0)
