"""Pictures for places that show no HTML (MLflow's artifacts): scores.png and pretraining.png."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.common.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {
    "p": ("#2a5bd7", "#0c8288", "#7c3fc4", "#2b7d3c", "#0b5a9c", "#6b7a12", "#a0379d", "#5b6a80"),
    "x": ("#df7a1c", "#c4384f", "#9a7400", "#ad3f93"),
}
_INK, _SOFT, _RULE = "#1b1b1a", "#5e5b55", "#e4e0d8"
_NAME_LENGTH = 28  # letters of a name in a legend
_QUOTED = ("BERT base", "BERT base (dev)")  # one reference mark per benchmark


def draw_plots(board: Mapping[str, Any], out_dir: Path) -> list[Path]:
    """Write the pictures of `board` into `out_dir`; equal boards give equal bytes.

    pretraining.png is left out where no encoder has a pre-training curve.
    """
    pictures = {"scores.png": _scores(board)}
    if any(curve["train"] or curve["heldout"] for curve in board["curves"]["pretrain"].values()):
        pictures["pretraining.png"] = _pretraining(board)
    written = []
    for name, figure in pictures.items():
        content = BytesIO()
        # The writer's version is no fact of the board.
        figure.savefig(content, format="png", dpi=150, metadata={"Software": None})
        write_bytes(out_dir / name, content.getvalue())
        written.append(out_dir / name)
    return written


def colours_of(board: Mapping[str, Any]) -> dict[str, str]:
    """A colour per measured system, as the page gives them."""
    numbers = dict.fromkeys(_COLOURS, 0)
    colours = {}
    for system in board["systems"]:
        if system["kind"] != "quoted":
            letter = "x" if system["kind"] == "scratch" else "p"
            colours[system["name"]] = _COLOURS[letter][numbers[letter] % len(_COLOURS[letter])]
            numbers[letter] += 1
    return colours


def _scores(board: Mapping[str, Any]) -> Figure:
    """Headline scores per benchmark as grouped bars, with the majority answer and BERT base as marks."""
    from matplotlib.figure import Figure  # a heavy import; a Figure of its own needs no display and no pyplot

    measured = [system for system in board["systems"] if system["kind"] != "quoted"]
    colours = colours_of(board)
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    axes = figure.subplots()
    width = 0.78 / max(1, len(measured))
    for number, system in enumerate(measured):
        places, means, spreads = [], [], []
        for column, (task, metric) in enumerate(board["headline"].items()):
            cell = system["scores"].get(task, {}).get(metric)
            if cell:
                places.append(column + (number - (len(measured) - 1) / 2) * width)
                means.append(cell["mean"])
                spreads.append(cell["std"] or 0.0)
        axes.bar(
            places,
            means,
            width * 0.92,
            yerr=spreads,
            color=colours[system["name"]],
            label=_short(system["name"]),
            error_kw={"elinewidth": 1, "ecolor": _INK},
        )
    quoted = {system["name"]: system for system in board["systems"] if system["name"] in _QUOTED}
    majority = board["baselines"]["majority"]["scores"]
    labels = {"majority": "majority answer", "quoted": "BERT base, quoted"}
    for column, (task, metric) in enumerate(board["headline"].items()):
        if metric in majority.get(task, {}):
            axes.hlines(
                majority[task][metric],
                column - 0.45,
                column + 0.45,
                color=_SOFT,
                linestyle=(0, (2, 2)),
                linewidth=1.2,
                label=labels.pop("majority", ""),
            )
        cells = [system["scores"].get(task, {}).get(metric) for system in quoted.values()]
        value = next((cell["mean"] for cell in reversed(cells) if cell), None)
        if value is not None:
            axes.plot(
                column,
                value,
                marker="D",
                markersize=5,
                color="none",
                markeredgecolor=_SOFT,
                linestyle="none",
                label=labels.pop("quoted", ""),
            )
    axes.set_xticks(range(len(board["tasks"])), [board["titles"][task].replace(" ", "\n") for task in board["tasks"]])
    axes.set_ylabel("headline score")
    axes.set_ylim(top=100)
    _dress(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=4, frameon=False)
    return figure


def _pretraining(board: Mapping[str, Any]) -> Figure:
    """Loss and accuracies of pre-training over steps, as far as there are any: training as a line, held-out as dots."""
    from matplotlib.figure import Figure

    colours = colours_of(board)
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    curves = board["curves"]["pretrain"]
    titles = {
        "mlm_loss": "masked words: loss",
        "mlm_accuracy": "masked words: accuracy",
        "nsp_accuracy": "next sentence: accuracy",
        "sop_accuracy": "sentence order: accuracy",
    }
    known = {metric for curve in curves.values() for row in curve["train"] + curve["heldout"] for metric in row}
    panels = [(metric, title) for metric, title in titles.items() if metric in known]
    for axes, (metric, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, curve in curves.items():
            for part, style in (("train", {"linewidth": 1.8}), ("heldout", {"marker": "o", "linestyle": "none"})):
                rows = [row for row in curve[part] if metric in row]
                if rows:
                    label = _short(name) if part == "train" else f"{_short(name)}, held-out"
                    steps, values = [row["step"] for row in rows], [row[metric] for row in rows]
                    axes.plot(steps, values, color=colours[name], label=label, markersize=5, **style)
        axes.set_title(title, fontsize=11, color=_INK)
        axes.set_xlabel("steps")
        _dress(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=9)
    return figure


def _short(name: str) -> str:
    """A name that a legend has room for."""
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"


def _dress(axes: Any) -> None:
    """The quiet look of the page: no box, faint lines behind the data."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_RULE)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, length=0)
