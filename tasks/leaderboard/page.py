"""leaderboard.html: one file that needs no network, drawn from leaderboard.json's content."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tasks.leaderboard import formatting
from tasks.leaderboard.bars import all_bars
from tasks.leaderboard.charts import gain_rows
from tasks.leaderboard.columns import metric_title
from tasks.leaderboard.learning import finetuning_plots, heldout_summary, pretraining_plots
from tasks.leaderboard.paper_tables import paper_tables
from tasks.leaderboard.table import against, modes_of, table_row
from tasks.project.pages import asset, templates

MOST_TILES = 4  # systems; a table tells of more
ASSETS = Path(__file__).parent / "assets"
NUM_COLOURS = {"p": 8, "x": 4}  # of each kind in style.css


def render_page(board: Mapping[str, Any]) -> str:
    """The page of one run. Every text from outside is escaped; equal boards give equal pages."""
    return _render("page.html.j2", "Cloze leaderboard", board, _scores_view(board) | _run_view(board))


def render_across(board: Mapping[str, Any], pages: Collection[str]) -> str:
    """The page over all recorded runs; those whose digests are in `pages` have a page of their own beside it."""
    runs = [
        {
            **run,
            "page": f"{run['digest']}/leaderboard.html" if run["digest"] in pages else "",
            "seconds_text": formatting.seconds(run["seconds"]),
            "energy_text": formatting.energy(run["energy_joules"]),
        }
        for run in board["records"]
    ]
    return _render("board.html.j2", "Cloze: all runs", board, _scores_view(board) | {"runs": runs})


def _render(template: str, title: str, board: Mapping[str, Any], view: Mapping[str, Any]) -> str:
    environment = templates(ASSETS)
    environment.filters.update(
        score=formatting.score,
        signed=formatting.signed,
        deviation=formatting.deviation,
        metric=metric_title,
    )
    return environment.get_template(template).render(
        board=board,
        title=title,
        style=asset(ASSETS / "style.css"),
        script=asset(ASSETS / "script.js"),
        **view,
    )


def _scores_view(board: Mapping[str, Any]) -> dict[str, Any]:
    """What both pages show: the main table, the champion's rivals, the paper's tables."""
    measured = [system for system in board["systems"] if system["kind"] != "quoted"]
    quoted = [system for system in board["systems"] if system["kind"] == "quoted"]
    return {
        "styles": styles_of(board),
        "modes": modes_of(board),
        "measured": measured,
        "groups": [
            {"title": "Measured", "kind": "measured", "rows": [table_row(board, system) for system in measured]},
            {"title": "Quoted from the paper", "kind": "quoted", "rows": [table_row(board, row) for row in quoted]},
        ],
        "num_folded": sum(not system["prominent"] for system in quoted),
        "majority": _majority(board),
        "majority_average": board["baselines"]["majority"]["average"],
        "against": against(board),
        "paper": paper_tables(measured),
    }


def _run_view(board: Mapping[str, Any]) -> dict[str, Any]:
    """What the page of one run shows besides."""
    styles, majority = styles_of(board), _majority(board)
    measured = [system for system in board["systems"] if system["kind"] != "quoted"]
    return {
        "tiles": _tiles(measured),
        "pretraining": _pretraining_tiles(board),
        "gain": gain_rows(board["lead"], majority) if board["lead"] else None,
        "bars": all_bars(board, styles, majority),
        "pretraining_plots": pretraining_plots(board["curves"]["pretrain"], styles),
        "finetuning": [
            {
                "task": task,
                "title": board["titles"][task],
                **finetuning_plots(board["curves"]["finetune"], task, metric_title(board["headline"][task]), styles),
            }
            for task in board["tasks"]
        ],
        "errors": _errors(board),
        "recipes": [_recipes(board, task, measured) for task in board["tasks"]],
        "flagged": [{**run, "recipe": formatting.recipe(run["recipe"])} for run in board["flagged"]],
        "gaps": _gaps(board),
    }


def styles_of(board: Mapping[str, Any]) -> dict[str, str]:
    """The CSS class of each system: p0.. pre-trained (by us or others), x0.. from scratch, in their order."""
    numbers = {"p": 0, "x": 0}
    styles = {}
    for system in board["systems"]:
        kind = system["kind"]
        if kind == "quoted":
            styles[system["name"]] = "quote"
        else:
            letter = "x" if kind == "scratch" else "p"
            styles[system["name"]] = f"{letter}{numbers[letter] % NUM_COLOURS[letter]}"
            numbers[letter] += 1
    return styles


def _majority(board: Mapping[str, Any]) -> dict[str, float]:
    """task → what the majority answer scores in the headline metric."""
    scores = board["baselines"]["majority"]["scores"]
    return {task: scores[task][metric] for task, metric in board["headline"].items() if metric in scores.get(task, {})}


def _tiles(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The systems whose averages stand large at the top: all, or the best where there are many."""
    if len(measured) <= MOST_TILES:
        return measured
    return sorted(measured, key=lambda system: -(system["average"] or 0.0))[: MOST_TILES - 1]


def _pretraining_tiles(board: Mapping[str, Any]) -> list[dict[str, str]]:
    tiles = []
    for name, curve in board["curves"]["pretrain"].items():
        summary = heldout_summary(curve)
        if summary:
            tiles.append({"name": name, **summary})
    return tiles


_ORDERS = {
    "confidence": "the most confident first",
    "distance": "the farthest first",
    "F1": "those that share the fewest words with an answer first",
    "wrong words": "those with the most wrong words first",
}


def _errors(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lists of error examples, in the order of the benchmarks."""
    return [
        {"task": task, "title": board["titles"][task], "order": _ORDERS.get(found["ranked_by"], ""), **found}
        for task in board["tasks"]
        if (found := board["errors"].get(task))
    ]


def _recipes(board: Mapping[str, Any], task: str, measured: list[dict[str, Any]]) -> dict[str, Any]:
    records = [(system["name"], system["cells"].get(task)) for system in measured]
    known = next((record for _, record in records if record), None)
    return {
        "task": task,
        "title": board["titles"][task],
        **{
            f"num_{kind}_rows": known[f"num_{kind}_rows"] if known else None
            for kind in ("train", "dev", "all_train", "all_dev")
        },
        "num_skipped_rows": known["num_skipped_rows"] if known else 0,
        "cells": [
            {
                "name": name,
                "recipe": formatting.recipe(record["recipe"])
                + (f" · after {', '.join(after)}" if (after := record["after"]) else ""),
                "tip": formatting.recipe_in_full(record["recipe"]),
                "num_recipes": record["num_recipes"],
                "num_runs": len(record["seeds"]),
                "num_degenerate": record["num_degenerate"],
            }
            if record
            else None
            for name, record in records
        ],
    }


def _gaps(board: Mapping[str, Any]) -> list[str]:
    """What is missing, in words."""
    return [
        f"{entry['encoder']} on {board['titles'][entry['benchmark']]}"
        if entry["benchmark"]
        else f"pre-training of {entry['encoder']}"
        for entry in board["missing"]
    ]
