"""Charts of the leaderboard: their data, and the geometry that the page draws them by.

Positions are in percent of the plot, so that the browser can stretch it freely. The PNG files draw the same data
(`tasks.leaderboard.plots`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.leaderboard import formatting
from tasks.leaderboard.schema import BoardModel, GapToScratch, Leaderboard, MeasuredSystem, QuotedSystem, System

NUM_QUOTED = 5  # systems of the paper per bar chart; the table has all of them
NUM_COLORS = {"p": 8, "x": 4}  # of each kind in style.css
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """Linear scale from values to 0..100 percent."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        """Position of `value` in percent, with two decimals."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)


@dataclass(frozen=True)
class Line:
    """A curve, or a set of dots, in data units."""

    style: str
    """CSS class that gives the color."""
    points: Points
    weight: Literal["thick", "thin", "dots"] = "thick"
    name: str = ""
    """Label in a legend."""


@dataclass(frozen=True)
class LineChart:
    """Curves over steps."""

    title: str
    lines: list[Line]
    summary: str = ""
    y_range: tuple[float, float] | None = None
    """Least range of the y axis; it always covers the data."""


@dataclass
class Plot:
    """Geometry of a line chart, for the template."""

    title: str
    summary: str
    paths: list[dict[str, str]] = field(default_factory=list)
    x_ticks: list[dict[str, Any]] = field(default_factory=list)
    y_ticks: list[dict[str, Any]] = field(default_factory=list)


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Return round values that cover low..high in about `wanted` equal steps."""
    if high - low <= 1e-6 * max(1.0, abs(high)):  # a flat curve, except for rounding
        high = low + 1
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def line_plot(chart: LineChart, num_x_ticks: int = 3, num_y_ticks: int = 3) -> Plot | None:
    """Compute the geometry of a chart; None if no line has a point."""
    points = [point for line in chart.lines for point in line.points]
    y_range = chart.y_range
    if not points:
        return None
    low = min([y for _, y in points] + ([y_range[0]] if y_range else []))
    high = max([y for _, y in points] + ([y_range[1]] if y_range else []))
    y_values = ticks(low, high, num_y_ticks)
    x_end = max(x for x, _ in points) or 1
    x_values = [value for value in ticks(0, x_end, num_x_ticks) if value <= x_end]
    x_scale, y_scale = Scale(0, x_end), Scale(y_values[0], y_values[-1])
    return Plot(
        title=chart.title,
        summary=chart.summary,
        paths=[
            {"style": f"{line.style} {'dots' if _dotted(line) else line.weight}", "path": _path(line, x_scale, y_scale)}
            for line in chart.lines
            if line.points
        ],
        x_ticks=[{"at": x_scale(value), "label": formatting.count(value)} for value in x_values],
        y_ticks=[{"at": y_scale(value), "label": f"{value:g}"} for value in y_values],
    )


def _path(line: Line, x_scale: Scale, y_scale: Scale) -> str:
    """SVG path in a 100 × 100 box whose y axis points down; dots are strokes of length 0 with round ends."""
    positions = [f"{x_scale(x):g} {round(100 - y_scale(y), 2):g}" for x, y in line.points]
    if _dotted(line):
        return "".join(f"M{position}h0" for position in positions)
    return "M" + "L".join(positions)


def _dotted(line: Line) -> bool:
    """Return True for dots; a curve of one point has no line."""
    return line.weight == "dots" or (line.weight == "thick" and len(line.points) == 1)


def mean_line(curves: Sequence[Points]) -> Points:
    """Mean over seeds at the steps that all curves have."""
    if not curves:
        return []
    values = [dict(curve) for curve in curves]
    shared = [step for step in values[0] if all(step in curve for curve in values)]
    return [(step, sum(curve[step] for curve in values) / len(values)) for step in shared]


def score_scale(values: Sequence[float]) -> Scale:
    """Scale from 0, or from below the lowest negative value, to 100."""
    lowest = min([0.0, *values])
    return Scale(10 * math.floor(lowest / 10), 100)


@dataclass(frozen=True)
class ScoreBar:
    """ScoreBar of a system."""

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
    bars, majority = chart.bars, chart.majority
    scale = score_scale([*(bar.value for bar in bars), *([majority] if majority is not None else [])])
    zero = scale(0)
    rows = []
    for bar in bars:
        at = scale(bar.value)
        ends = [scale(max(bar.value - bar.spread, scale.low)), scale(min(bar.value + bar.spread, 100))]
        rows.append(
            {
                "name": bar.name,
                "style": bar.style,
                "quoted": bar.kind == "quoted",
                "split": bar.split,
                "text": formatting.score(bar.value),
                "left": min(at, zero),
                "width": round(abs(at - zero), 2),
                "whisker": ends if bar.spread else None,
                "tip": bar.tip,
            }
        )
    return {
        "task": chart.task,
        "title": chart.title,
        "subtitle": chart.subtitle,
        "rows": rows,
        "majority": None if majority is None else scale(majority),
    }


def bar_charts(board: Leaderboard) -> list[BarChart]:
    """Charts in the order of the page: averages that exist, then every benchmark."""
    styles = styles_of(board)
    averages = [
        _average(board, styles, "average", "Average", f"{len(board.tasks)} benchmarks"),
        _average(board, styles, "glue_average", "GLUE", "average as Table 1"),
    ]
    return [*(chart for chart in averages if chart), *(_benchmark(board, styles, task) for task in board.tasks)]


def styles_of(board: BoardModel) -> dict[str, str]:
    """CSS class of each system: p0.. pre-trained (by us or others), x0.. from scratch, in their order."""
    numbers = {"p": 0, "x": 0}
    styles = {}
    for system in board.measured:
        letter = "x" if system.kind == "scratch" else "p"
        styles[system.name] = f"{letter}{numbers[letter] % NUM_COLORS[letter]}"
        numbers[letter] += 1
    return styles | {system.name: "quote" for system in board.quoted}


def _average(board: Leaderboard, styles: Mapping[str, str], key: str, title: str, subtitle: str) -> BarChart | None:
    """Chart of an average; None if no measured system has it. Quoted systems only have the GLUE average."""
    systems: list[System] = [*board.measured, *(board.quoted if key == "glue_average" else [])]
    bars = [
        ScoreBar(
            name=system.name,
            kind=system.kind,
            split=system.split,
            style=styles[system.name],
            value=getattr(system, key),
            spread=0.0,
            tip=f"{system.name}, {system.split}: {title} {formatting.score(getattr(system, key))}, {subtitle}",
        )
        for system in systems
        if getattr(system, key) is not None
    ]
    if all(bar.kind == "quoted" for bar in bars):
        return None
    return BarChart("", title, subtitle, bars, board.baselines.majority.average if key == "average" else None)


def _benchmark(board: Leaderboard, styles: Mapping[str, str], task: str) -> BarChart:
    """Our systems, then each system of the paper once, on dev if the paper reports that."""
    metric = board.headline[task]
    quoted: dict[str, QuotedSystem] = {}
    for one in board.quoted:
        if one.score(task, metric) and (one.paper_name not in quoted or one.split == "dev"):
            quoted[one.paper_name] = one
    systems: list[System] = [*board.measured, *list(quoted.values())[:NUM_QUOTED]]
    bars = [
        ScoreBar(
            name=system.paper_name if isinstance(system, QuotedSystem) else system.name,
            kind=system.kind,
            split=system.split,
            style=styles[system.name],
            value=score.mean,
            spread=score.std or 0.0,
            tip=cell_tip(board, system, task, metric),
        )
        for system in systems
        if (score := system.score(task, metric))
    ]
    return BarChart(task, board.titles[task], formatting.metric_title(metric), bars, board.majority.get(task))


def gap_rows(gap: GapToScratch, majority: Mapping[str, float]) -> dict[str, Any]:
    """Geometry of the gap to scratch per benchmark, the largest first: scratch, pre-trained and majority label."""
    scale = score_scale([value for one in gap.per_task.values() for value in (one.pretrained, one.scratch)])
    rows = []
    for task, one in sorted(gap.per_task.items(), key=lambda item: -item[1].difference):
        ends = sorted((scale(one.scratch), scale(one.pretrained)))
        tip = f"{gap.pretrained} {formatting.score(one.pretrained)}, {gap.scratch} {formatting.score(one.scratch)}"
        if task in majority:
            tip += f", majority {formatting.score(majority[task])}"
        if one.standard_error is not None:
            tip += f"; difference {formatting.signed(one.difference)} ± {one.standard_error:.1f} (standard error)"
        rows.append(
            {
                "task": task,
                "scratch": scale(one.scratch),
                "pretrained": scale(one.pretrained),
                "left": ends[0],
                "right": ends[1],
                "majority": scale(majority[task]) if task in majority else None,
                "text": formatting.signed(one.difference),
                "ahead": one.difference > 0,
                "tip": tip,
            }
        )
    marks = [{"at": scale(value), "label": formatting.score(value)[:-2]} for value in ticks(scale.low, 100, 4)]
    return {"rows": rows, "ticks": marks}


def cell_tip(board: BoardModel, system: System, task: str, metric: str) -> str:
    """Tooltip of a score."""
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
            parts.append(f"{score.num_runs} seeds, median {median}, best {best}")
        else:
            parts.append(f"one run, seed {cell.seeds[0]}")
        parts += [formatting.recipe(cell.recipe), formatting.coverage(cell)]
        if cell.all_degenerate:
            parts.append("every run gave one answer for all rows")
        elif cell.num_degenerate:
            parts.append(f"{cell.num_degenerate} degenerate left out")
    return f"{system.name} on {board.titles[task]}, {system.split}: " + "; ".join(parts)
