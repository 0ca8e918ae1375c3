"""leaderboard.html: one file that needs no network, drawn from leaderboard.json's content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.leaderboard import formats
from tasks.leaderboard.bars import all_bars
from tasks.leaderboard.charts import cell_tip, gain_rows
from tasks.leaderboard.columns import metric_title
from tasks.leaderboard.learning import finetuning_plots, heldout_summary, pretraining_plots
from tasks.pages import asset, templates

ASSETS = Path(__file__).parent / "assets"
NUM_COLOURS = 4  # of each kind in style.css


def render_page(board: Mapping[str, Any]) -> str:
    """The page for `board`. Every text from outside is escaped; equal boards give equal pages."""
    environment = templates(ASSETS)
    environment.filters.update(
        score=formats.score, signed=formats.signed, deviation=formats.deviation, metric=metric_title
    )
    return environment.get_template("page.html.j2").render(
        board=board,
        style=asset(ASSETS / "style.css"),
        script=asset(ASSETS / "script.js"),
        **_view(board),
    )


def _view(board: Mapping[str, Any]) -> dict[str, Any]:
    styles = styles_of(board)
    measured = [system for system in board["systems"] if system["kind"] != "quoted"]
    quoted = [system for system in board["systems"] if system["kind"] == "quoted"]
    majority = _majority(board)
    return {
        "styles": styles,
        "measured": measured,
        "groups": [
            {"title": "Measured", "kind": "measured", "rows": [_row(board, system) for system in measured]},
            {"title": "Quoted from the paper", "kind": "quoted", "rows": [_row(board, row) for row in quoted]},
        ],
        "num_folded": sum(not system["prominent"] for system in quoted),
        "majority": majority,
        "majority_average": board["baselines"]["majority"]["average"],
        "pretraining": _pretraining_tiles(board),
        "gain": gain_rows(board["lead"], majority) if board["lead"] else None,
        "bars": all_bars(board, styles, majority),
        "pretraining_plots": pretraining_plots(board["curves"]["pretrain"], styles),
        "finetuning": [
            {
                "title": board["titles"][task],
                **finetuning_plots(board["curves"]["finetune"], task, metric_title(board["headline"][task]), styles),
            }
            for task in board["tasks"]
        ],
        "recipes": [_recipes(board, task, measured) for task in board["tasks"]],
        "flagged": [{**run, "recipe": formats.recipe(run["recipe"])} for run in board["flagged"]],
        "gaps": _gaps(board),
    }


def styles_of(board: Mapping[str, Any]) -> dict[str, str]:
    """The CSS class of each system: p0.. pre-trained, x0.. from scratch, in the order of the parameters."""
    numbers = {"pretrained": 0, "scratch": 0}
    styles = {}
    for system in board["systems"]:
        kind = system["kind"]
        if kind == "quoted":
            styles[system["name"]] = "quote"
        else:
            styles[system["name"]] = f"{'p' if kind == 'pretrained' else 'x'}{numbers[kind] % NUM_COLOURS}"
            numbers[kind] += 1
    return styles


def _majority(board: Mapping[str, Any]) -> dict[str, float]:
    """task → what the majority answer scores in the headline metric."""
    scores = board["baselines"]["majority"]["scores"]
    return {task: scores[task][metric] for task, metric in board["headline"].items() if metric in scores.get(task, {})}


def _row(board: Mapping[str, Any], system: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the main table; the best measured mean of each column is marked."""
    return {
        "system": system,
        "cells": [_cell(board, system, task, metric) for task, metric in board["headline"].items()],
        "best_average": system["kind"] != "quoted" and system["average"] == _best(board, "average"),
        "best_glue": system["kind"] != "quoted" and system["glue_average"] == _best(board, "glue_average"),
    }


def _cell(board: Mapping[str, Any], system: Mapping[str, Any], task: str, metric: str) -> dict[str, Any] | None:
    cell = system["scores"].get(task, {}).get(metric)
    if cell is None:
        return None
    record = system["cells"][task] if system["kind"] != "quoted" else {"num_degenerate": 0, "all_degenerate": False}
    means = [
        other["scores"][task][metric]["mean"]
        for other in board["systems"]
        if other["kind"] != "quoted" and metric in other["scores"].get(task, {})
    ]
    return {
        **cell,
        "tip": cell_tip(system, task, metric),
        "best": system["kind"] != "quoted" and len(means) > 1 and cell["mean"] == max(means),
        "flag": record["num_degenerate"],
        "collapsed": record["all_degenerate"],
    }


def _best(board: Mapping[str, Any], key: str) -> float | None:
    """The highest measured `key`; None unless two systems have it."""
    values = [row[key] for row in board["systems"] if row["kind"] != "quoted" and row[key] is not None]
    return max(values) if len(values) > 1 else None


def _pretraining_tiles(board: Mapping[str, Any]) -> list[dict[str, str]]:
    tiles = []
    for name, curve in board["curves"]["pretrain"].items():
        summary = heldout_summary(curve)
        if summary:
            tiles.append({"name": name, **summary})
    return tiles


def _recipes(board: Mapping[str, Any], task: str, measured: list[dict[str, Any]]) -> dict[str, Any]:
    records = [(system["name"], system["cells"].get(task)) for system in measured]
    known = next((record for _, record in records if record), None)
    return {
        "title": board["titles"][task],
        "num_train_rows": known["num_train_rows"] if known else None,
        "num_dev_rows": known["num_dev_rows"] if known else None,
        "num_skipped_rows": known["num_skipped_rows"] if known else 0,
        "cells": [
            {
                "name": name,
                "recipe": formats.recipe(record["recipe"]),
                "tip": formats.recipe_in_full(record["recipe"]),
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
