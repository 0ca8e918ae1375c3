"""Build the leaderboard: read the metrics, rank, and write leaderboard.json, .csv and .html and the plots.

Equal inputs give equal bytes: nothing depends on the time, the machine or the order in which jobs ended. Every run of
the chosen recipe counts, also a degenerate one (one answer for every row). Degenerate runs are flagged, and the mean of
the other runs is shown next to that of all.
"""

from __future__ import annotations

import collections
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.scoring.metrics import f1, percent
from model.benchmarks.table import BENCHMARKS, Benchmark
from model.common.files import digest_of, write_bytes, write_json
from tasks.leaderboard import formatting, schema
from tasks.leaderboard.charts import PRETRAINING_METRICS, draw_plots
from tasks.leaderboard.comparisons import NUM_RESAMPLES, compare_all, gap_between, reference_of
from tasks.leaderboard.csv_table import csv_table, write_dvc_files
from tasks.leaderboard.inputs import BenchmarkMetrics, FinetuneResult, Inputs, read_inputs, read_output
from tasks.leaderboard.page import render_page
from tasks.leaderboard.paper_scores import glue_columns, quoted_systems
from tasks.leaderboard.schema import average, means_of, rounded
from tasks.stats.compare import half_interval
from tasks.stats.selection import SelectedRecipe
from tasks.tracking.tracking import flatten

Cells = dict[str, dict[str, SelectedRecipe[FinetuneResult]]]
"""encoder → benchmark → chosen recipe"""
SPLIT = "dev"  # fine-tuning runs are scored on dev; the paper's tables on test, unless marked dev
NUM_PRETRAINING_POINTS = 160
NUM_FINETUNING_POINTS = 40
MAX_CONFUSION_CLASSES = 20  # a larger matrix is not legible on the page


def build_leaderboard(
    finetune_dir: Path,
    pretrain_dir: Path,
    encoders: Sequence[Mapping[str, Any]],
    benchmarks: Sequence[str],
    out_dir: Path,
    *,
    allow_missing: bool = False,
    notes: Sequence[str] = (),
    reference: str = "",
    paper_scores: bool = True,
    controls: Mapping[str, str] | None = None,
) -> schema.Leaderboard:
    """Rank `encoders` on `benchmarks`, write the leaderboard into `out_dir`, and return its content.

    An encoder is {name, kind}; one of several pre-trainings of a system also has {system, seed}.

    `notes` are sentences about the data, for the page; the others are compared with `reference`, by default the best.
    `paper_scores` adds the paper's scores. `controls` gives the benchmarks and metrics of pre-training on which no gain
    is expected, with the reason.

    Raises:
        UserError: metrics are missing (without `allow_missing`) or damaged, or there is no such reference. In this
            case, nothing is written.
    """
    inputs = read_inputs(finetune_dir, pretrain_dir, encoders, benchmarks, allow_missing=allow_missing)
    board = compose(inputs, encoders, benchmarks, notes, reference, paper_scores, controls)
    page = render_page(board)
    write_json(out_dir / "leaderboard.json", board.content())
    write_bytes(out_dir / "leaderboard.csv", csv_table(board).encode())
    write_bytes(out_dir / "leaderboard.html", page.encode())
    draw_plots(board, out_dir / "plots")
    write_dvc_files(board, out_dir)
    return board


def compose(
    inputs: Inputs,
    encoders: Sequence[Mapping[str, Any]],
    benchmarks: Sequence[str],
    notes: Sequence[str] = (),
    reference: str = "",
    paper_scores: bool = True,
    controls: Mapping[str, str] | None = None,
) -> schema.Leaderboard:
    cells = {name: {task: metrics.selected for task, metrics in row.items()} for name, row in inputs.metrics.items()}
    kinds = {encoder.get("system", encoder["name"]): encoder["kind"] for encoder in encoders}
    jobs = inputs.jobs
    custom = {task: one.row for row in inputs.metrics.values() for task, one in row.items() if one.row is not None}
    rows = BENCHMARKS | custom
    headline = {task: rows[task].headline if task in rows else "" for task in benchmarks}
    headline |= {task: runs[0].headline.metric for task, runs in jobs.items()}
    measured = [_measured(name, kind, inputs.metrics[name], headline, inputs) for name, kind in kinds.items()]
    pretrained = [system for system in measured if system.kind != "scratch"]
    scratch = [system for system in measured if system.kind == "scratch"]
    gaps = [gap_between(ours, theirs, headline) for ours in pretrained for theirs in scratch]
    averages = {system.name: system.average or 0.0 for system in measured}
    best = reference_of(measured, headline, reference)
    return schema.Leaderboard(
        tasks=list(benchmarks),
        custom=dict(sorted(custom.items())),
        titles={task: rows[task].title if task in rows else task for task in benchmarks},
        headline=headline,
        systems=[*measured, *(quoted_systems(benchmarks) if paper_scores else [])],
        baselines={"majority": _majority(jobs, headline)},
        reference=best.name if best else None,
        comparisons=compare_all(measured, headline, best, inputs.predictions_of, rows),
        gap=max(gaps, key=lambda gap: (averages[gap.pretrained], averages[gap.scratch]), default=None),
        gaps=gaps,
        curves=schema.Curves(
            pretrain={
                name: schema.PretrainCurve(
                    encoder=metrics.name,
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
        errors={task: _errors(inputs, cells, task, rows.get(task)) for task in benchmarks},
        classes={
            task: reports
            for task in benchmarks
            if task in rows and (reports := _class_reports(inputs, cells, task, rows[task]))
        },
        controls={key: why for key, why in (controls or {}).items() if key in PRETRAINING_METRICS or key in benchmarks},
        runs={
            "total": sum(map(len, jobs.values())),
            "degenerate": sum(job.degenerate for runs in jobs.values() for job in runs),
        },
        flagged=_flagged(inputs, cells),
        skipped=[
            {"benchmark": task, "num_skipped_rows": count}
            for task, runs in jobs.items()
            if (count := max(job.num_skipped_rows for job in runs))
        ],
        remarks={
            task: {"skipped": run.skipped_rows, "odd": run.remarks}
            for task, runs in jobs.items()
            for run in [run for run in runs if run.skipped_rows or run.remarks][:1]  # all runs read the same files
        },
        missing=inputs.missing,
        notes=list(notes),
    )


def _measured(
    name: str,
    kind: str,
    metrics: Mapping[str, BenchmarkMetrics],
    headline: Mapping[str, str],
    inputs: Inputs,
) -> schema.RunSystem:
    scores = {task: cell_scores(one.selected) for task, one in metrics.items()}
    jobs = {task: sorted(job.digest for job in one.jobs) for task, one in metrics.items()}
    means = means_of(scores)
    content = {
        "name": name,
        "kind": kind,
        "split": SPLIT,
        "digest": digest_of([kind, jobs]),
        "average": average(means, headline.items()),
        "average_of": f"headline metrics of {len(headline)} benchmarks",
        "glue_average": average(means, glue_columns()),
        "scores": scores,
        "cells": {task: cell_record(one, inputs) for task, one in metrics.items()},
        "pretrain_jobs": inputs.pretrain_jobs.get(name, {}),
        "pretrainings": [
            _measured(encoder, kind, found, headline, inputs)
            for encoder, found in inputs.pretrainings.get(name, {}).items()
        ],
    }
    return schema.RunSystem.parse(content, f"encoder {name}")


def cell_scores(cell: SelectedRecipe[FinetuneResult]) -> dict[str, schema.ScoreSummary]:
    """metric → score over all runs of the recipe; the best is that of the best run, which is published

    With several pre-trainings, the deviation is that of their means.
    """
    shared = [metric for metric in cell.runs[0].scores if all(metric in run.scores for run in cell.runs)]
    encoders = [run.encoder for run in cell.runs]
    found = {}
    for metric in shared:
        values = [run.scores[metric] for run in cell.runs]
        score = summarize(values, best=cell.best.scores[metric])
        if len(set(encoders)) > 1:
            means = [
                statistics.fmean(value for value, one in zip(values, encoders) if one == encoder)
                for encoder in dict.fromkeys(encoders)
            ]
            score = score.model_copy(update={"std": rounded(statistics.stdev(means))})
        found[metric] = score
    return found


def cell_record(metrics: BenchmarkMetrics, inputs: Inputs) -> schema.CellRecord:
    """Return the chosen recipe, its runs and the data. The recipe is that of the best run, if pre-trainings differ."""
    cell = metrics.selected
    pretrain_seeds = [run.pretrain_seed for run in cell.runs if run.pretrain_seed is not None]
    row, ensemble = metrics.row or BENCHMARKS.get(metrics.benchmark), metrics.ensemble
    if ensemble is not None and sorted(ensemble.seeds) != sorted(run.seed for run in cell.usable):
        ensemble = None  # of other runs than those of the cell
    return schema.CellRecord(
        **cell.best.model_dump(include={"recipe", *schema.EvaluationData.model_fields}),
        num_recipes=cell.num_recipes,
        seeds=[run.seed for run in cell.runs],
        values=[rounded(run.headline.value) for run in cell.runs],
        runs=[run.digest for run in cell.runs],
        pretrain_seeds=pretrain_seeds,
        encoders=[run.encoder for run in cell.runs] if pretrain_seeds else [],
        jobs=sorted(job.digest for job in (*metrics.jobs, *metrics.pruned)),
        num_degenerate=len(cell.runs) - cell.rank.num_learned,
        all_degenerate=cell.collapsed,
        learned_mean=rounded(statistics.fmean(run.headline.value for run in cell.usable))
        if len(cell.usable) < len(cell.runs)
        else None,
        best_run=cell.best.digest,
        selected=_selected(cell, row),
        selection=_selection_gap(cell, row, inputs),
        num_pruned=len(metrics.pruned),
        after=metrics.after,
        ensemble=None if ensemble is None else {name: rounded(value) for name, value in ensemble.scores.items()},
    )


def _selected(cell: SelectedRecipe[FinetuneResult], row: Benchmark | None) -> list[str]:
    found = {
        "recipe": cell.num_recipes > 1,
        "epoch": bool(cell.best.recipe.get("evaluate_every_epoch")),
        "threshold": row is not None and row.unanswerable,
    }
    return [name for name, was_selected in found.items() if was_selected]


def _selection_gap(
    cell: SelectedRecipe[FinetuneResult], row: Benchmark | None, inputs: Inputs
) -> schema.SelectionGap | None:
    """Compare the scores on the rows for selection with the reported ones; None if they are the same rows."""
    run = cell.best
    if not run.num_selection_rows:
        return None
    mean = statistics.fmean(run.merit for run in cell.runs)
    runs = [(one.encoder, one.digest) for one in cell.runs]
    others = inputs.all_predictions(runs, run.benchmark, selection=True)
    reported = inputs.all_predictions(runs, run.benchmark)
    low = high = None
    if row is not None and others and reported:
        low, high = map(rounded, half_interval(row, run.headline.metric, others, reported, NUM_RESAMPLES))
    difference = rounded(mean - statistics.fmean(run.headline.value for run in cell.runs))
    return schema.SelectionGap(mean=rounded(mean), difference=difference, low=low, high=high)


def summarize(values: Iterable[float], best: float | None = None) -> schema.ScoreSummary:
    """Compute mean, sample deviation (None for one value), median and number of `values`; `best` is their maximum by
    default."""
    numbers = list(values)
    return schema.ScoreSummary(
        mean=rounded(statistics.fmean(numbers)),
        std=rounded(statistics.stdev(numbers)) if len(numbers) > 1 else None,
        median=rounded(statistics.median(numbers)),
        best=rounded(max(numbers) if best is None else best),
        num_runs=len(numbers),
    )


def _majority(jobs: Mapping[str, Sequence[FinetuneResult]], headline: Mapping[str, str]) -> schema.MajorityBaseline:
    """Return the scores of the majority label. All runs have the same dev rows, so the first one is used."""
    scores = {
        task: {metric: rounded(value) for metric, value in runs[0].majority.items()}
        for task, runs in jobs.items()
        if runs[0].majority
    }
    return schema.MajorityBaseline(split=SPLIT, average=average(scores, headline.items()), scores=scores)


def _best_runs(cells: Cells, task: str) -> dict[str, FinetuneResult]:
    """system → its best run on a benchmark, which is the published one"""
    return {name: row[task].best for name, row in cells.items() if task in row}


def _errors(inputs: Inputs, cells: Cells, task: str, row: Benchmark | None) -> list[schema.SystemErrors]:
    reports, names = [], row.label_names if row is not None else {}
    for name, run in _best_runs(cells, task).items():
        path = inputs.run(run.encoder, task, run.digest).errors
        if path.is_file():
            found = {"system": name, "seed": run.seed, "score": rounded(run.headline.value)}
            content = read_output(path) | found
            for entry in content.get("rows", []):
                entry |= {key: names.get(entry[key], entry[key]) for key in ("prediction", "label") if key in entry}
            reports.append(schema.SystemErrors.parse(content, str(path)))
    return reports


def _class_reports(inputs: Inputs, cells: Cells, task: str, row: Benchmark) -> list[schema.ClassReport]:
    reports = []
    for name, run in _best_runs(cells, task).items():
        records = inputs.predictions(run.encoder, task, run.digest)
        found = HEAD_SPECS[row.head].class_counts(row, records) if records else None
        if not records or found is None:
            continue
        classes = [
            schema.ClassScores(
                name=label,
                num_rows=gold,
                num_predicted=predicted,
                precision=rounded(float(percent(right, predicted))),
                recall=rounded(float(percent(right, gold))),
                f1=rounded(float(f1(right, predicted, gold))),
            )
            for label, (right, predicted, gold) in zip(found.names, found.counts)
        ]
        reports.append(
            schema.ClassReport(
                system=name,
                seed=run.seed,
                num_rows=len(records),
                classes=classes,
                confusion=found.confusion if len(classes) <= MAX_CONFUSION_CLASSES else None,
            )
        )
    return reports


def _flagged(inputs: Inputs, cells: Cells) -> list[schema.FlaggedRun]:
    return [
        schema.FlaggedRun(
            encoder=name,
            benchmark=task,
            seed=job.seed,
            recipe=job.recipe,
            reason="one answer for every dev row",
            score=rounded(job.headline.value),
            chosen_recipe=job.recipe == cell.best.recipe,
        )
        for name, row in cells.items()
        for task, cell in row.items()
        for job in inputs.metrics[name][task].jobs
        if job.degenerate
    ]


def _curve(run: FinetuneResult) -> schema.FinetuneCurve:
    metric = run.headline.metric
    scores: schema.Points = [
        {"step": row["step"], "score": rounded(row["scores"][metric])}
        for row in run.evaluations
        if "step" in row and metric in row.get("scores", {})
    ]
    return schema.FinetuneCurve(seed=run.seed, loss=thin(run.curve, NUM_FINETUNING_POINTS), scores=scores)


def thin(rows: Sequence[dict[str, Any]], num_points: int) -> schema.Points:
    """Reduce to at most `num_points` points, each the mean of consecutive rows, at their last step.

    Rounds values to five significant digits, and omits values that are not finite (a diverged loss).
    """
    size = max(1, math.ceil(len(rows) / num_points))
    thinned: schema.Points = []
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


# Tags, parameters and metrics of a system, flattened so that MLflow's compare view works on them


def flat_tags(board: schema.Leaderboard, system: schema.MeasuredSystem) -> dict[str, str]:
    cells = system.cells.values()
    tags = {
        "cloze.kind": "system",
        "cloze.stage": "leaderboard",
        "cloze.system": system.name,
        "cloze.encoder": system.name,
        "cloze.encoder_kind": system.kind,
        "cloze.split": system.split,
        "cloze.reference": "yes" if system.name == board.reference else "no",
        "cloze.system_digest": system.digest,
        "cloze.coverage": "partial" if any(formatting.is_partial(cell) for cell in cells) else "whole",
        "cloze.num_benchmarks": str(len(system.scores)),
        "cloze.num_degenerate": str(sum(cell.num_degenerate for cell in cells)),
    }
    comparisons = board.comparisons.get(system.name)
    if comparisons:
        verdicts = [record.verdict for record in comparisons.values()]
        counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts) if verdict != "none"]
        tags["cloze.against_reference"] = ", ".join(counts)
    return tags


def flat_params(system: schema.MeasuredSystem) -> dict[str, str]:
    """Return recipe, seeds and rows, each as one parameter.

    A parameter lists the most common value, then the exceptions: `128; squad1 384, squad2 384`.
    """
    cells = system.cells
    params = {"encoder": system.name, "kind": system.kind, "split": system.split}
    recipes = {task: flatten(cell.recipe) for task, cell in cells.items()}
    for key in sorted({key for recipe in recipes.values() for key in recipe}):
        params[f"recipe.{key}"] = _with_exceptions({task: recipe.get(key, "None") for task, recipe in recipes.items()})
    params["seeds"] = _with_exceptions({task: " ".join(map(str, cell.seeds)) for task, cell in cells.items()})
    params["rows"] = _with_exceptions({task: formatting.coverage(cell) for task, cell in cells.items()})
    return params


def _with_exceptions(values: Mapping[str, str]) -> str:
    if not values:
        return ""
    most = collections.Counter(values.values()).most_common(1)[0][0]
    others = ", ".join(f"{name} {value}" for name, value in values.items() if value != most)
    return f"{most}; {others}" if others else most


def flat_metrics(
    board: schema.Leaderboard, system: schema.MeasuredSystem, cost: schema.SystemCost | None
) -> dict[str, float]:
    """Return each metric's mean over seeds, as `dev/mrpc/f1`; headline metrics also have `_std`, `_median`, `_best`.

    Other metrics are the averages, `vs_reference/BENCHMARK` (points) and `spent/...` in seconds, joules and bytes.
    """
    found: dict[str, float | None] = {"average": system.average, "glue_average": system.glue_average}
    for task, scores in system.scores.items():
        start = f"{system.split}/{_name(task)}"
        found |= {f"{start}/{metric}": score.mean for metric, score in scores.items()}
        metric = board.headline[task]
        cell = scores[metric]
        found |= {f"{start}/{metric}_{part}": getattr(cell, part) for part in ("std", "median", "best")}
        found[f"{start}/{metric}_ensemble"] = (system.cells[task].ensemble or {}).get(metric)
    for task, record in board.comparisons.get(system.name, {}).items():
        found[f"vs_reference/{_name(task)}"] = record.difference
    if cost is not None:
        found |= {f"spent/{name}": value for name, value in cost.total.items()}
        found |= {f"spent/seconds/{_name(task)}": one.get("seconds") for task, one in cost.tasks.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def _name(task: str) -> str:
    """Remove characters from a custom task's name that MLflow does not allow."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", task)
