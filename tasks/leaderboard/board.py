"""Build the leaderboard: read the metrics, rank, and write leaderboard.json, leaderboard.html and the plots.

Equal inputs give equal bytes: nothing here knows the time, the machine or the order in which jobs ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model.benchmarks.table import BENCHMARKS
from model.common.files import digest_of, write_bytes, write_json
from tasks.leaderboard.columns import column_of
from tasks.leaderboard.comparisons import champion_of, compare_all
from tasks.leaderboard.gap_to_scratch import lead_between
from tasks.leaderboard.inputs import FinetuneResult, Inputs, read_inputs
from tasks.leaderboard.learning_curves import finetuning_curves, pretraining_curves
from tasks.leaderboard.page import render_page
from tasks.leaderboard.paper_scores import quoted_systems
from tasks.leaderboard.plots import draw_plots
from tasks.leaderboard.scores import average, cell_record, cell_scores, glue_average, rounded
from tasks.stats.selection import Selection, select

Cell = Selection[FinetuneResult]
SPLIT = "dev"  # what fine-tuning scores on; the paper's tables are on test unless they say dev


def build_leaderboard(
    finetune_dir: Path,
    pretrain_dir: Path,
    encoders: Sequence[dict[str, str]],
    benchmarks: Sequence[str],
    out_dir: Path,
    *,
    allow_missing: bool = False,
    notes: Sequence[str] = (),
    champion: str = "",
) -> dict[str, Any]:
    """Rank `encoders` ({name, kind}) on `benchmarks` and write the leaderboard into `out_dir`.

    `notes` are sentences about the data that the page should carry; `champion` is the encoder that the others are
    compared with (empty: the best). Written: leaderboard.json (returned too),
    leaderboard.html, plots/scores.png and plots/pretraining.png.

    Raises:
        UserError: metrics are missing (without `allow_missing`) or damaged, or there is no such champion; nothing
            is written then.
    """
    inputs = read_inputs(finetune_dir, pretrain_dir, encoders, benchmarks, allow_missing=allow_missing)
    board = compose(inputs, encoders, benchmarks, notes, champion)
    page = render_page(board)
    write_json(out_dir / "leaderboard.json", board)
    write_bytes(out_dir / "leaderboard.html", page.encode())
    draw_plots(board, out_dir / "plots")
    return board


def compose(
    inputs: Inputs,
    encoders: Sequence[dict[str, str]],
    benchmarks: Sequence[str],
    notes: Sequence[str] = (),
    champion: str = "",
) -> dict[str, Any]:
    """leaderboard.json as a dictionary; scores are on the paper's scale, 0 to 100."""
    cells = {
        encoder["name"]: {task: select(jobs) for task, jobs in inputs.finetuning[encoder["name"]].items()}
        for encoder in encoders
    }
    headline = {task: _headline(task, cells) for task in benchmarks}
    measured = [_measured(encoder, cells[encoder["name"]], headline, inputs) for encoder in encoders]
    leads = [
        lead_between(ours, theirs, headline)
        for ours in measured
        if ours["kind"] != "scratch"
        for theirs in measured
        if theirs["kind"] == "scratch"
    ]
    best = champion_of(measured, headline, champion)
    return {
        "format": 2,
        "tasks": list(benchmarks),
        "own": {task: row.model_dump(mode="json") for task, row in sorted(inputs.own.items())},
        "titles": {task: column_of(task, inputs.own.get(task)).title for task in benchmarks},
        "headline": headline,
        "systems": measured + quoted_systems(list(benchmarks)),
        "baselines": {"majority": _majority(inputs, headline)},
        "champion": best,
        "comparisons": compare_all(measured, headline, best, inputs.predictions_of, BENCHMARKS | inputs.own),
        "lead": _main_lead(leads, measured),
        "leads": leads,
        "curves": {
            "pretrain": {name: pretraining_curves(metrics) for name, metrics in inputs.pretraining.items()},
            "finetune": {
                name: {task: finetuning_curves(cell) for task, cell in row.items()} for name, row in cells.items()
            },
        },
        "errors": {task: _errors(inputs, cells, task) for task in benchmarks},
        "runs": _num_runs(inputs),
        "flagged": _flagged(inputs, cells),
        "skipped": _skipped(inputs),
        "remarks": _remarks(inputs),
        "missing": inputs.missing,
        "notes": list(notes),
    }


def _headline(task: str, cells: dict[str, dict[str, Cell]]) -> str:
    """The metric that the results name, else the one of the table of benchmarks."""
    for row in cells.values():
        if task in row:
            return row[task].best.headline.metric
    return column_of(task).headline


def _measured(
    encoder: dict[str, str], cells: dict[str, Cell], headline: dict[str, str], inputs: Inputs
) -> dict[str, Any]:
    beside = inputs.beside[encoder["name"]]
    scores = {task: cell_scores(cell) for task, cell in cells.items()}
    jobs = {task: sorted(job.digest for job in beside[task].jobs) for task in cells}
    return {
        "name": encoder["name"],
        "kind": encoder["kind"],
        "split": SPLIT,
        "digest": digest_of([encoder["kind"], jobs]),
        "average": average(scores, headline),
        "average_of": f"headline metrics of {len(headline)} benchmarks",
        "glue_average": glue_average(scores),
        "scores": scores,
        "cells": {task: cell_record(cell, beside[task]) for task, cell in cells.items()},
    }


def _main_lead(leads: list[dict[str, Any]], measured: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The best pre-trained encoder against the best from scratch, by average (the first of equals)."""
    averages = {system["name"]: system["average"] or 0.0 for system in measured}
    return max(leads, key=lambda lead: (averages[lead["pretrained"]], averages[lead["scratch"]]), default=None)


def _majority(inputs: Inputs, headline: dict[str, str]) -> dict[str, Any]:
    """What always giving the majority answer scores: all encoders meet the same dev rows, so the first tells it."""
    scores: dict[str, dict[str, float]] = {}
    for task in headline:
        jobs = next((row[task] for row in inputs.finetuning.values() if task in row), [])
        if jobs and jobs[0].majority:
            scores[task] = {metric: rounded(value) for metric, value in jobs[0].majority.items()}
    means = {task: {metric: {"mean": value} for metric, value in row.items()} for task, row in scores.items()}
    return {"split": SPLIT, "average": average(means, headline), "scores": scores}


def _errors(inputs: Inputs, cells: dict[str, dict[str, Cell]], task: str) -> dict[str, Any] | None:
    """What the best run of all got wrong; None where no run left examples."""
    rows = [(name, row[task]) for name, row in cells.items() if task in row]
    if not rows:
        return None
    name, cell = max(rows, key=lambda pair: pair[1].best.headline.value)
    run = cell.best
    examples = inputs.errors(name, task, run.digest)
    if examples is None:
        return None
    return {"system": name, "seed": run.seed, "score": rounded(run.headline.value), **examples.model_dump(mode="json")}


def _num_runs(inputs: Inputs) -> dict[str, int]:
    """Fine-tuning runs read, and how many of them are degenerate."""
    jobs = [job for row in inputs.finetuning.values() for cell in row.values() for job in cell]
    return {"total": len(jobs), "degenerate": sum(job.degenerate for job in jobs)}


def _flagged(inputs: Inputs, cells: dict[str, dict[str, Cell]]) -> list[dict[str, Any]]:
    """Every degenerate run, whether of the chosen recipe or not, and whether its score counts."""
    return [
        {
            "encoder": name,
            "benchmark": task,
            "seed": job.seed,
            "recipe": job.recipe,
            "reason": "one answer for every dev row",
            "score": rounded(job.headline.value),
            "chosen_recipe": job.recipe == cells[name][task].best.recipe,
            "counted": cells[name][task].collapsed and job.recipe == cells[name][task].best.recipe,
        }
        for name, row in inputs.finetuning.items()
        for task, jobs in row.items()
        for job in jobs
        if job.degenerate
    ]


def _skipped(inputs: Inputs) -> list[dict[str, Any]]:
    """Benchmarks of which rows were skipped as unreadable, with the number."""
    skipped: dict[str, int] = {}
    for row in inputs.finetuning.values():
        for task, jobs in row.items():
            skipped[task] = max([skipped.get(task, 0), *(job.num_skipped_rows for job in jobs)])
    return [{"benchmark": task, "num_skipped_rows": count} for task, count in skipped.items() if count]


def _remarks(inputs: Inputs) -> dict[str, dict[str, list[str]]]:
    """benchmark → rows that were skipped and what is odd about others, as the first run tells it; all read one file."""
    found = {}
    for row in inputs.finetuning.values():
        for task, jobs in row.items():
            if task not in found and (jobs[0].skipped_rows or jobs[0].remarks):
                found[task] = {"skipped": jobs[0].skipped_rows, "odd": jobs[0].remarks}
    return found
