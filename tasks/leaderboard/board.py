"""Build the leaderboard: read the metrics, rank, and write leaderboard.json, leaderboard.html and the plots.

Equal inputs give equal bytes: nothing depends on the time, the machine or the order in which jobs ended.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model.benchmarks.table import BENCHMARKS
from model.common.files import digest_of, write_bytes, write_json
from tasks.leaderboard.charts import draw_plots
from tasks.leaderboard.comparisons import compare_all, gap_between, reference_of
from tasks.leaderboard.inputs import FinetuneResult, Inputs, read_inputs
from tasks.leaderboard.page import render_page
from tasks.leaderboard.paper_scores import quoted_systems
from tasks.leaderboard.schema import (
    Baselines,
    Curves,
    FinetuneCurve,
    FlaggedRun,
    GapToScratch,
    Leaderboard,
    MajorityBaseline,
    Points,
    PretrainCurve,
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
NUM_PRETRAINING_POINTS = 160
NUM_FINETUNING_POINTS = 40


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
        name: {task: select(metrics.jobs) for task, metrics in row.items()} for name, row in inputs.metrics.items()
    }
    jobs = inputs.jobs
    custom = {task: one.row for row in inputs.metrics.values() for task, one in row.items() if one.row is not None}
    rows = BENCHMARKS | custom
    headline = {task: rows[task].headline if task in rows else "" for task in benchmarks}
    headline |= {task: runs[0].headline.metric for task, runs in jobs.items()}
    measured = [_measured(encoder, cells, headline, inputs) for encoder in encoders]
    pretrained = [system for system in measured if system.kind != "scratch"]
    scratch = [system for system in measured if system.kind == "scratch"]
    gaps = [gap_between(ours, theirs, headline) for ours in pretrained for theirs in scratch]
    best = reference_of(measured, headline, reference)
    return Leaderboard(
        tasks=list(benchmarks),
        custom=dict(sorted(custom.items())),
        titles={task: rows[task].title if task in rows else task for task in benchmarks},
        headline=headline,
        systems=[*measured, *quoted_systems(benchmarks)],
        baselines=Baselines(majority=_majority(jobs, headline)),
        reference=best.name if best else None,
        comparisons=compare_all(measured, headline, best, inputs.predictions_of, rows),
        gap=_main_gap(gaps, measured),
        gaps=gaps,
        curves=Curves(
            pretrain={
                name: PretrainCurve(
                    num_steps=metrics.num_steps,
                    num_tokens_seen=metrics.num_tokens_seen,
                    train=thin(metrics.curve, NUM_PRETRAINING_POINTS),
                    heldout=thin(metrics.heldout, NUM_PRETRAINING_POINTS),
                )
                for name, metrics in inputs.pretraining.items()
            },
            finetune={
                name: {task: [_curve(run) for run in cell.runs] for task, cell in row.items()}
                for name, row in cells.items()
            },
        ),
        errors={task: _errors(inputs, cells, task) for task in benchmarks},
        runs=RunCounts(
            total=sum(map(len, jobs.values())), degenerate=sum(job.degenerate for runs in jobs.values() for job in runs)
        ),
        flagged=_flagged(inputs, cells),
        skipped=[
            {"benchmark": task, "num_skipped_rows": count}
            for task, runs in jobs.items()
            if (count := max(job.num_skipped_rows for job in runs))
        ],
        remarks={
            task: Remarks(skipped=run.skipped_rows, odd=run.remarks)
            for task, runs in jobs.items()
            for run in runs[:1]  # all runs read the same files
            if run.skipped_rows or run.remarks
        },
        missing=inputs.missing,
        notes=list(notes),
    )


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


def _majority(jobs: Mapping[str, Sequence[FinetuneResult]], headline: Mapping[str, str]) -> MajorityBaseline:
    """Scores of the majority label; all encoders have the same dev rows, so the first run is representative."""
    scores = {
        task: {metric: rounded(value) for metric, value in runs[0].majority.items()}
        for task, runs in jobs.items()
        if runs[0].majority
    }
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
            chosen_recipe=job.recipe == cell.best.recipe,
            counted=cell.collapsed and job.recipe == cell.best.recipe,
        )
        for name, row in cells.items()
        for task, cell in row.items()
        for job in inputs.metrics[name][task].jobs
        if job.degenerate
    ]


def _curve(run: FinetuneResult) -> FinetuneCurve:
    metric = run.headline.metric
    scores: Points = [
        {"step": row["step"], "score": rounded(row["scores"][metric])}
        for row in run.evaluations
        if "step" in row and metric in row.get("scores", {})
    ]
    return FinetuneCurve(seed=run.seed, loss=thin(run.curve, NUM_FINETUNING_POINTS), scores=scores)


def thin(rows: Sequence[dict[str, Any]], num_points: int) -> Points:
    """Reduce to at most `num_points` points, each the mean of consecutive rows, at their last step.

    Values are rounded to five significant digits; those that are not finite numbers (a diverged loss) are left out.
    """
    size = max(1, math.ceil(len(rows) / num_points))
    thinned: Points = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        point: dict[str, int | float] = {"step": part[-1].get("step", start + len(part))}
        for metric in sorted({key for row in part for key in row} - {"step"}):
            values = [value for row in part if isinstance(value := row.get(metric), int | float)]
            finite = [value for value in values if math.isfinite(value)]
            if finite:
                point[metric] = float(f"{statistics.fmean(finite):.5g}")
        thinned.append(point)
    return thinned
