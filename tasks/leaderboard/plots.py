"""PNG versions of the page's charts, for places that do not show HTML (MLflow's artifacts): scores and pre-training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.common.files import write_bytes
from tasks.leaderboard.charts import BarChart, LineChart, bar_charts, styles_of
from tasks.leaderboard.learning_curves import pretraining_charts
from tasks.leaderboard.schema import Leaderboard

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAME_LENGTH = 28  # letters of a name in a legend
_QUOTED = "BERT base"  # one mark per benchmark


def draw_plots(board: Leaderboard, out_dir: Path) -> list[Path]:
    """Write the plots of `board` into `out_dir`; equal boards give equal bytes.

    pretraining.png is left out if no encoder has a pre-training curve.
    """
    styles = styles_of(board)
    figures = {"scores.png": _scores([chart for chart in bar_charts(board) if chart.task], styles)}
    curves = pretraining_charts(board, styles)
    if curves:
        figures["pretraining.png"] = _pretraining(curves)
    written = []
    for name, figure in figures.items():
        content = BytesIO()
        figure.savefig(content, format="png", dpi=150, metadata={"Software": None})  # without matplotlib's version
        write_bytes(out_dir / name, content.getvalue())
        written.append(out_dir / name)
    return written


def _scores(charts: list[BarChart], styles: Mapping[str, str]) -> Figure:
    """Headline scores per benchmark as grouped bars, with the majority label and BERT base as marks."""
    from matplotlib.figure import Figure  # a heavy import

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
            color=_color(styles[name]),
            label=_short(name),
            error_kw={"elinewidth": 1, "ecolor": _color("ink")},
        )
    marks: dict[str, Any] = {"color": _color("soft"), "linestyle": (0, (2, 2)), "linewidth": 1.2}
    labels = {"majority": "majority answer", "quoted": "BERT base, quoted"}
    for column, chart in enumerate(charts):
        if chart.majority is not None:
            axes.hlines(chart.majority, column - 0.45, column + 0.45, label=labels.pop("majority", ""), **marks)
        value = next((bar.value for bar in chart.bars if bar.kind == "quoted" and bar.name == _QUOTED), None)
        if value is not None:
            diamond: dict[str, Any] = {
                "marker": "D",
                "markersize": 5,
                "color": "none",
                "markeredgecolor": _color("soft"),
            }
            axes.plot(column, value, linestyle="none", label=labels.pop("quoted", ""), **diamond)
    axes.set_xticks(range(len(charts)), [chart.title.replace(" ", "\n") for chart in charts])
    axes.set_ylabel("headline score")
    axes.set_ylim(top=100)
    _style_axes(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=4, frameon=False)
    return figure


def _pretraining(charts: list[LineChart]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        for line in chart.lines:
            if line.points:
                dots = line.weight == "dots"
                style: dict[str, Any] = {"marker": "o", "linestyle": "none"} if dots else {"linewidth": 1.8}
                steps, values = zip(*line.points)
                axes.plot(steps, values, color=_color(line.style), label=_short(line.name), markersize=5, **style)
        axes.set_title(chart.title, fontsize=11, color=_color("ink"))
        axes.set_xlabel("steps")
        _style_axes(axes)
        axes.legend(frameon=False, fontsize=9)
    return figure


def _color(style: str) -> str:
    """Color of a CSS class or variable on the page, in its light theme."""
    return _colors()[style]


@cache
def _colors() -> dict[str, str]:
    css = (Path(__file__).parent / "assets" / "style.css").read_text(encoding="utf-8")
    return dict(reversed(re.findall(r"--(\w+): *(#\w+)", css)))  # the first value of a name counts


def _short(name: str) -> str:
    """Name that fits a legend."""
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"


def _style_axes(axes: Any) -> None:
    """Style of the page: no box, faint lines behind the data."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_color("rule"))
    axes.grid(axis="y", color=_color("rule"), linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_color("soft"), length=0)
