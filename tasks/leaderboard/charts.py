"""The geometry of the page's charts: positions in per cent of the plot, so that the browser may stretch it freely."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.leaderboard import formatting
from tasks.leaderboard.columns import column_of, metric_title


@dataclass(frozen=True)
class Scale:
    """A linear scale from values to 0..100 per cent."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        """Where `value` lies, in per cent with two decimals."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)


@dataclass
class Line:
    """One curve: (x, y) points in data units."""

    style: str
    """CSS class that gives the colour."""
    points: list[tuple[float, float]]
    weight: str = "thick"
    """thick, thin, or dots."""


@dataclass
class Plot:
    """A line chart, ready for the template."""

    title: str
    summary: str
    paths: list[dict[str, str]] = field(default_factory=list)
    x_ticks: list[dict[str, Any]] = field(default_factory=list)
    y_ticks: list[dict[str, Any]] = field(default_factory=list)


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round values that cover low..high in about `wanted` equal steps, from at or below to at or above."""
    if high - low <= 1e-6 * max(1.0, abs(high)):  # a flat curve, or one that rounding alone bends
        high = low + 1
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def line_plot(
    title: str,
    lines: Sequence[Line],
    *,
    summary: str = "",
    y_range: tuple[float, float] | None = None,
    y_format: str = "{:g}",
    num_x_ticks: int = 3,
    num_y_ticks: int = 3,
) -> Plot | None:
    """A chart of `lines`; None when no line has a point. The y axis covers the data unless `y_range` is wider."""
    points = [point for line in lines for point in line.points]
    if not points:
        return None
    low = min([y for _, y in points] + ([y_range[0]] if y_range else []))
    high = max([y for _, y in points] + ([y_range[1]] if y_range else []))
    y_values = ticks(low, high, num_y_ticks)
    x_end = max(x for x, _ in points) or 1
    x_values = [value for value in ticks(0, x_end, num_x_ticks) if value <= x_end]
    x_scale, y_scale = Scale(0, x_end), Scale(y_values[0], y_values[-1])
    return Plot(
        title=title,
        summary=summary,
        paths=[
            {"style": f"{line.style} {'dots' if _dotted(line) else line.weight}", "path": _path(line, x_scale, y_scale)}
            for line in lines
            if line.points
        ],
        x_ticks=[{"at": x_scale(value), "label": formatting.count(value)} for value in x_values],
        y_ticks=[{"at": y_scale(value), "label": y_format.format(value)} for value in y_values],
    )


def _path(line: Line, x_scale: Scale, y_scale: Scale) -> str:
    """An SVG path over a 100 × 100 box whose y grows downwards; dots are strokes of no length with round ends."""
    places = [f"{x_scale(x):g} {round(100 - y_scale(y), 2):g}" for x, y in line.points]
    if _dotted(line):
        return "".join(f"M{place}h0" for place in places)
    return "M" + "L".join(places)


def _dotted(line: Line) -> bool:
    """A curve of one point has no line to draw."""
    return line.weight == "dots" or (line.weight == "thick" and len(line.points) == 1)


def mean_line(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean over seeds at the steps that all curves have."""
    if not curves:
        return []
    values = [dict(curve) for curve in curves]
    shared = [step for step in values[0] if all(step in curve for curve in values)]
    return [(step, sum(curve[step] for curve in values) / len(values)) for step in shared]


def score_scale(values: Sequence[float]) -> Scale:
    """0 to 100, and further down where a correlation is negative."""
    lowest = min([0.0, *values])
    return Scale(10 * math.floor(lowest / 10), 100)


@dataclass(frozen=True)
class Bar:
    """One system's bar."""

    name: str
    kind: str
    split: str
    style: str
    value: float
    spread: float
    """Standard deviation, 0 where there is none."""
    tip: str


def bar_rows(bars: Sequence[Bar], majority: float | None) -> dict[str, Any]:
    """The rows of a bar chart, and where the line of the majority answer stands."""
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
    return {"rows": rows, "majority": None if majority is None else scale(majority)}


def gain_rows(lead: Mapping[str, Any], majority: Mapping[str, float]) -> dict[str, Any]:
    """The benchmarks of a lead, largest first: where scratch, pre-trained and majority stand."""
    cells = lead["per_task"]
    scale = score_scale([value for cell in cells.values() for value in (cell["pretrained"], cell["scratch"])])
    order = sorted(cells, key=lambda task: -cells[task]["difference"])
    rows = []
    for task in order:
        cell = cells[task]
        ends = sorted((scale(cell["scratch"]), scale(cell["pretrained"])))
        rows.append(
            {
                "task": task,
                "scratch": scale(cell["scratch"]),
                "pretrained": scale(cell["pretrained"]),
                "left": ends[0],
                "right": ends[1],
                "majority": scale(majority[task]) if task in majority else None,
                "text": formatting.signed(cell["difference"]),
                "ahead": cell["difference"] > 0,
                "tip": f"{lead['pretrained']} {formatting.score(cell['pretrained'])}, "
                f"{lead['scratch']} {formatting.score(cell['scratch'])}"
                + (f", majority {formatting.score(majority[task])}" if task in majority else "")
                + (
                    f"; difference {formatting.signed(cell['difference'])} ± {cell['standard_error']:.1f} (standard error)"  # noqa: E501
                    if cell["standard_error"] is not None
                    else ""
                ),
            }
        )
    marks = [{"at": scale(value), "label": formatting.score(value)[:-2]} for value in ticks(scale.low, 100, 4)]
    return {"rows": rows, "ticks": marks}


def cell_tip(system: Mapping[str, Any], task: str, metric: str) -> str:
    """What a tooltip tells of one cell."""
    head = f"{system['name']} on {column_of(task).title}, {system['split']}"
    parts = []
    for name, cell in sorted(system["scores"][task].items(), key=lambda item: item[0] != metric):
        parts.append(
            f"{metric_title(name)} {formatting.score(cell['mean'])} {formatting.deviation(cell['std'])}".strip()
        )
    cell = system["scores"][task][metric]
    if system["kind"] == "quoted":
        parts.append(f"quoted from {system['source'][task]} of the paper")
    else:
        record = system["cells"][task]
        if cell["num_runs"] > 1:
            parts.append(
                f"{cell['num_runs']} seeds, median {formatting.score(cell['median'])}, best {formatting.score(cell['best'])}"  # noqa: E501
            )
        else:
            parts.append(f"one run, seed {record['seeds'][0]}")
        parts.append(formatting.recipe(record["recipe"]))
        parts.append(formatting.coverage(record))
        if record["all_degenerate"]:
            parts.append("every run gave one answer for all rows")
        elif record["num_degenerate"]:
            parts.append(f"{record['num_degenerate']} degenerate left out")
    return f"{head}: " + "; ".join(parts)
