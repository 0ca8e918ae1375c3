"""Build the leaderboard: read the metrics, rank, and write leaderboard.json, leaderboard.html and the plots.

Equal inputs give equal bytes: nothing depends on the time, the machine or the order in which jobs ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from model.benchmarks.table import BENCHMARKS
from model.common.files import digest_of, write_bytes, write_json
from tasks.leaderboard.comparisons import compare_all, gap_between, reference_of
from tasks.leaderboard.inputs import FinetuneResult, Inputs, read_inputs
from tasks.leaderboard.learning_curves import finetuning_curves, pretraining_curves
from tasks.leaderboard.page import render_page
from tasks.leaderboard.paper_scores import quoted_systems
from tasks.leaderboard.plots import draw_plots
from tasks.leaderboard.schema import (
    Baselines,
    Curves,
    FlaggedRun,
    GapToScratch,
    Leaderboard,
    MajorityBaseline,
    Remarks,
    RunCounts,
    RunSystem,
    SystemErrors,
)
from tasks.leaderboard.scores import average, cell_record, cell_scores, glue_average, means_of, rounded
from tasks.stats.selection import SelectedRecipe, select

Cells = dict[str, dict[str, SelectedRecipe[FinetuneResult]]]
"""encoder → benchmark → chosen recipe"""
SPLIT = "dev"  # fine-tuning runs are scored on dev; the paper's tables are on test unless they say dev


def build_leaderboard(
    finetune_dir: Path,
    pretrain_dir: Path,
    encoders: Sequence[dict[str, str]],
    benchmarks: Sequence[str],
    out_dir: Path,
    *,
    allow_missing: bool = False,
    notes: Sequence[str] = (),
    reference: str = "",
) -> Leaderboard:
    """Rank `encoders` ({name, kind}) on `benchmarks` and write the leaderboard into `out_dir`.

    Args:
        notes: sentences about the data, for the page.
        reference: the encoder that the others are compared with; empty for the best.

    Returns:
        The content of leaderboard.json. Also written: leaderboard.html, plots/scores.png and plots/pretraining.png.

    Raises:
        UserError: metrics are missing (without `allow_missing`) or damaged, or there is no such reference; nothing
            is written then.
    """
    inputs = read_inputs(finetune_dir, pretrain_dir, encoders, benchmarks, allow_missing=allow_missing)
    board = compose(inputs, encoders, benchmarks, notes, reference)
    page = render_page(board)
    write_json(out_dir / "leaderboard.json", board.content())
    write_bytes(out_dir / "leaderboard.html", page.encode())
    draw_plots(board, out_dir / "plots")
    return board


def compose(
    inputs: Inputs,
    encoders: Sequence[dict[str, str]],
    benchmarks: Sequence[str],
    notes: Sequence[str] = (),
    reference: str = "",
) -> Leaderboard:
    """Compute the content of leaderboard.json."""
    cells = {
        encoder["name"]: {task: select(jobs) for task, jobs in inputs.finetuning[encoder["name"]].items()}
        for encoder in encoders
    }
    rows = BENCHMARKS | inputs.custom
    headline = {task: _headline(task, cells) for task in benchmarks}
    measured = [_measured(encoder, cells, headline, inputs) for encoder in encoders]
    gaps = [
        gap_between(ours, theirs, headline)
        for ours in measured
        if ours.kind != "scratch"
        for theirs in measured
        if theirs.kind == "scratch"
    ]
    best = reference_of(measured, headline, reference)
    return Leaderboard(
        tasks=list(benchmarks),
        custom=dict(sorted(inputs.custom.items())),
        titles={task: rows[task].title if task in rows else task for task in benchmarks},
        headline=headline,
        systems=[*measured, *quoted_systems(benchmarks)],
        baselines=Baselines(majority=_majority(inputs, headline)),
        reference=best.name if best else None,
        comparisons=compare_all(measured, headline, best, inputs.predictions_of, rows),
        gap=_main_gap(gaps, measured),
        gaps=gaps,
        curves=Curves(
            pretrain={name: pretraining_curves(metrics) for name, metrics in inputs.pretraining.items()},
            finetune={
                name: {task: finetuning_curves(cell) for task, cell in row.items()} for name, row in cells.items()
            },
        ),
        errors={task: _errors(inputs, cells, task) for task in benchmarks},
        runs=_num_runs(inputs),
        flagged=_flagged(inputs, cells),
        skipped=_skipped(inputs),
        remarks=_remarks(inputs),
        missing=inputs.missing,
        notes=list(notes),
    )


def _headline(task: str, cells: Cells) -> str:
    """The metric that the results name, else that of the table of benchmarks."""
    for row in cells.values():
        if task in row:
            return row[task].best.headline.metric
    return BENCHMARKS[task].headline if task in BENCHMARKS else ""


def _measured(encoder: dict[str, str], cells: Cells, headline: Mapping[str, str], inputs: Inputs) -> RunSystem:
    name = encoder["name"]
    scores = {task: cell_scores(cell) for task, cell in cells[name].items()}
    jobs = {task: sorted(job.digest for job in inputs.metrics[name][task].jobs) for task in scores}
    means = means_of(scores)
    content = {
        "name": name,
        "kind": encoder["kind"],
        "split": SPLIT,
        "digest": digest_of([encoder["kind"], jobs]),
        "average": average(means, headline),
        "average_of": f"headline metrics of {len(headline)} benchmarks",
        "glue_average": glue_average(means),
        "scores": scores,
        "cells": {task: cell_record(cell, inputs.metrics[name][task]) for task, cell in cells[name].items()},
    }
    return RunSystem.parse(content, f"encoder {name}")


def _main_gap(gaps: Sequence[GapToScratch], measured: Sequence[RunSystem]) -> GapToScratch | None:
    """The best pre-trained encoder against the best from scratch, by average (the first of equal ones)."""
    averages = {system.name: system.average or 0.0 for system in measured}
    return max(gaps, key=lambda gap: (averages[gap.pretrained], averages[gap.scratch]), default=None)


def _majority(inputs: Inputs, headline: Mapping[str, str]) -> MajorityBaseline:
    """Scores of the majority label; all encoders have the same dev rows, so the first run is representative."""
    scores: dict[str, dict[str, float]] = {}
    for task in headline:
        jobs = next((row[task] for row in inputs.finetuning.values() if task in row), [])
        if jobs and jobs[0].majority:
            scores[task] = {metric: rounded(value) for metric, value in jobs[0].majority.items()}
    return MajorityBaseline(split=SPLIT, average=average(scores, headline), scores=scores)


def _errors(inputs: Inputs, cells: Cells, task: str) -> SystemErrors | None:
    """Error examples of the best run of all encoders; None if it has none."""
    rows = [(name, row[task]) for name, row in cells.items() if task in row]
    if not rows:
        return None
    name, cell = max(rows, key=lambda pair: pair[1].best.headline.value)
    run = cell.best
    examples = inputs.errors(name, task, run.digest)
    if examples is None:
        return None
    return SystemErrors(system=name, seed=run.seed, score=rounded(run.headline.value), **examples.model_dump())


def _num_runs(inputs: Inputs) -> RunCounts:
    jobs = [job for row in inputs.finetuning.values() for runs in row.values() for job in runs]
    return RunCounts(total=len(jobs), degenerate=sum(job.degenerate for job in jobs))


def _flagged(inputs: Inputs, cells: Cells) -> list[FlaggedRun]:
    """All degenerate runs of all recipes, and whether their scores count."""
    return [
        FlaggedRun(
            encoder=name,
            benchmark=task,
            seed=job.seed,
            recipe=job.recipe,
            reason="one answer for every dev row",
            score=rounded(job.headline.value),
            chosen_recipe=job.recipe == cells[name][task].best.recipe,
            counted=cells[name][task].collapsed and job.recipe == cells[name][task].best.recipe,
        )
        for name, row in inputs.finetuning.items()
        for task, jobs in row.items()
        for job in jobs
        if job.degenerate
    ]


def _skipped(inputs: Inputs) -> list[dict[str, str | int]]:
    skipped: dict[str, int] = {}
    for row in inputs.finetuning.values():
        for task, jobs in row.items():
            skipped[task] = max([skipped.get(task, 0), *(job.num_skipped_rows for job in jobs)])
    return [{"benchmark": task, "num_skipped_rows": count} for task, count in skipped.items() if count]


def _remarks(inputs: Inputs) -> dict[str, Remarks]:
    """Remarks of the first run of each benchmark; all runs read the same files."""
    found: dict[str, Remarks] = {}
    for row in inputs.finetuning.values():
        for task, jobs in row.items():
            if task not in found and (jobs[0].skipped_rows or jobs[0].remarks):
                found[task] = Remarks(skipped=jobs[0].skipped_rows, odd=jobs[0].remarks)
    return found
