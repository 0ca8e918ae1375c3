"""leaderboard.html and board.html: self-contained pages of a leaderboard's content."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tasks.leaderboard import formatting
from tasks.leaderboard.charts import bar_charts, bar_plot, gap_rows, line_plot, styles_of
from tasks.leaderboard.learning_curves import finetuning_charts, heldout_summary, pretraining_charts
from tasks.leaderboard.paper_scores import paper_tables
from tasks.leaderboard.schema import BoardModel, CombinedBoard, Leaderboard, MeasuredSystem
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
    return _render("page.html.j2", "Cloze leaderboard", board, _scores_view(board) | _run_view(board))


def render_combined(board: CombinedBoard, pages: Collection[str]) -> str:
    """Render the page over all recorded runs; `pages` are the digests of the runs whose pages exist."""
    runs = [
        {
            **run.model_dump(),
            "page": f"{run.digest}/leaderboard.html" if run.digest in pages else "",
            "seconds_text": formatting.seconds(run.seconds),
            "energy_text": formatting.energy(run.energy_joules),
        }
        for run in board.records
    ]
    return _render("board.html.j2", "Cloze: all runs", board, _scores_view(board) | {"runs": runs})


def _render(template: str, title: str, board: BoardModel, view: Mapping[str, Any]) -> str:
    environment = templates(ASSETS)
    environment.filters.update(
        score=formatting.score,
        signed=formatting.signed,
        deviation=formatting.deviation,
        metric=formatting.metric_title,
        recipe=formatting.recipe,
        recipe_in_full=formatting.recipe_in_full,
    )
    return environment.get_template(template).render(
        board=board,
        title=title,
        style=asset(ASSETS / "style.css"),
        script=asset(ASSETS / "script.js"),
        **view,
    )


def _scores_view(board: BoardModel) -> dict[str, Any]:
    """Values that both pages show: the main table, the comparisons with the reference, the paper's tables."""
    groups = (("Measured", "measured", board.measured), ("Quoted from the paper", "quoted", board.quoted))
    return {
        "styles": styles_of(board),
        "modes": modes_of(board),
        "measured": board.measured,
        "groups": [
            {"title": title, "kind": kind, "rows": [table_row(board, system) for system in systems]}
            for title, kind, systems in groups
        ],
        "num_folded": sum(not system.prominent for system in board.quoted),
        "majority": board.majority,
        "majority_average": board.baselines.majority.average,
        "against": versus_reference(board),
        "paper": paper_tables(board.measured),
    }


def _run_view(board: Leaderboard) -> dict[str, Any]:
    """Values that only the page of one run shows."""
    styles = styles_of(board)
    return {
        "tiles": _tiles(board),
        "pretraining": _pretraining_tiles(board),
        "gain": gap_rows(board.gap, board.majority) if board.gap else None,
        "bars": [bar_plot(chart) for chart in bar_charts(board)],
        "pretraining_plots": [
            line_plot(chart, num_x_ticks=4, num_y_ticks=5) for chart in pretraining_charts(board, styles)
        ],
        "finetuning": [_finetuning(board, task, styles) for task in board.tasks],
        "errors": {task: found for task in board.tasks if (found := board.errors.get(task))},
        "orders": _ORDERS,
        "cells_of": {
            task: next((one.cells[task] for one in board.measured if task in one.cells), None) for task in board.tasks
        },
        "gaps": _missing(board),
    }


def _tiles(board: Leaderboard) -> list[MeasuredSystem]:
    """The systems whose averages are shown at the top: all, or the best if there are many."""
    measured = list(board.measured)
    if len(measured) <= MAX_TILES:
        return measured
    return sorted(measured, key=lambda system: -(system.average or 0.0))[: MAX_TILES - 1]


def _pretraining_tiles(board: Leaderboard) -> list[dict[str, str]]:
    summaries = {name: heldout_summary(curve) for name, curve in board.curves.pretrain.items()}
    return [{"name": name, **summary} for name, summary in summaries.items() if summary]


def _finetuning(board: Leaderboard, task: str, styles: Mapping[str, str]) -> dict[str, Any]:
    score, loss = finetuning_charts(board, task, styles)
    return {
        "task": task,
        "title": board.titles[task],
        "score": line_plot(score, num_y_ticks=2),
        "loss": line_plot(loss, num_y_ticks=2),
    }


def _missing(board: Leaderboard) -> list[str]:
    return [
        f"{entry['encoder']} on {board.titles[entry['benchmark']]}"
        if entry["benchmark"]
        else f"pre-training of {entry['encoder']}"
        for entry in board.missing
    ]
