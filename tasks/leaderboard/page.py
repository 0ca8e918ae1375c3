"""leaderboard.html and board.html: self-contained pages of a leaderboard's content."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tasks.leaderboard import formatting
from tasks.leaderboard.charts import (
    bar_charts,
    bar_plot,
    finetuning_charts,
    gap_rows,
    line_plot,
    pretraining_charts,
    styles_of,
)
from tasks.leaderboard.paper_scores import paper_tables
from tasks.leaderboard.schema import BoardModel, CombinedBoard, Leaderboard, MeasuredSystem, PretrainCurve
from tasks.leaderboard.score_table import modes_of, table_row, versus_reference
from tasks.project.pages import asset, templates

MAX_TILES = 4  # of systems; the table lists all
ASSETS = Path(__file__).parent / "assets"
_ORDERS = {
    "confidence": "the most confident first",
    "distance": "the farthest first",
    "F1": "those that share the fewest words with an answer first",
    "wrong words": "those with the most wrong words first",
}


def render_page(board: Leaderboard) -> str:
    """Render the page of one run. Text from outside is escaped; equal boards give equal pages."""
    styles = styles_of(board)
    summaries = {name: _heldout_summary(curve) for name, curve in board.curves.pretrain.items()}
    finetuning = [
        {"task": task, "plots": [line_plot(chart, num_y_ticks=2) for chart in finetuning_charts(board, task, styles)]}
        for task in board.tasks
    ]
    return _render(
        "page.html.j2",
        "Cloze leaderboard",
        board,
        tiles=_tiles(board),
        pretraining=[{"name": name, **summary} for name, summary in summaries.items() if summary],
        gain=gap_rows(board.gap, board.majority) if board.gap else None,
        bars=[bar_plot(chart) for chart in bar_charts(board)],
        pretraining_plots=[
            line_plot(chart, num_x_ticks=4, num_y_ticks=5) for chart in pretraining_charts(board, styles)
        ],
        finetuning=finetuning,
        errors={task: found for task in board.tasks if (found := board.errors.get(task))},
        orders=_ORDERS,
        cells_of={
            task: next((one.cells[task] for one in board.measured if task in one.cells), None) for task in board.tasks
        },
    )


def render_combined(board: CombinedBoard, pages: Collection[str]) -> str:
    """Render the page over all recorded runs; `pages` are the digests of the runs whose pages exist."""
    return _render("board.html.j2", "Cloze: all runs", board, pages=pages)


def _render(template: str, title: str, board: BoardModel, **view: Any) -> str:
    environment = templates(ASSETS)
    for name in ("score", "signed", "recipe", "recipe_in_full", "seconds", "energy"):
        environment.filters[name] = getattr(formatting, name)
    environment.filters["metric"] = formatting.metric_title
    groups = (("Measured", "measured", board.measured), ("Quoted from the paper", "quoted", board.quoted))
    return environment.get_template(template).render(
        board=board,
        title=title,
        style=asset(ASSETS / "style.css"),
        script=asset(ASSETS / "script.js"),
        styles=styles_of(board),
        modes=modes_of(board),
        measured=board.measured,
        groups=[
            {"title": title, "kind": kind, "rows": [table_row(board, system) for system in systems]}
            for title, kind, systems in groups
        ],
        num_folded=sum(not system.prominent for system in board.quoted),
        majority=board.majority,
        majority_average=board.baselines.majority.average,
        against=versus_reference(board),
        paper=paper_tables(board.measured),
        **view,
    )


def _tiles(board: Leaderboard) -> list[MeasuredSystem]:
    """The systems whose averages are shown at the top: all, or the best if there are many."""
    measured = list(board.measured)
    if len(measured) <= MAX_TILES:
        return measured
    return sorted(measured, key=lambda system: -(system.average or 0.0))[: MAX_TILES - 1]


def _heldout_summary(curve: PretrainCurve) -> dict[str, str] | None:
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
