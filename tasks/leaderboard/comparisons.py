"""Compare encoders: every system with the reference, and pre-trained encoders with those from scratch.

Two systems are compared on a benchmark only if both were scored on the same dev rows of the same split. A difference is
significant if every available test rejects at 5 %: over seeds (would it appear with other seeds?) and over dev rows
(would it appear on other rows?). The p-value is the larger of the two, after Holm's correction over the benchmarks of a
system; a difference that is significant only before the correction is marked as a hint ("perhaps").
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from model.benchmarks.table import BENCHMARKS, Benchmark
from model.common.errors import UserError
from tasks.leaderboard import schema
from tasks.leaderboard.schema import rounded
from tasks.stats.compare import CONFIDENCE, LEVEL, Comparison, Run, compare_runs, correct, t_quantile
from tasks.stats.measures import Records

NUM_RESAMPLES = 2000  # the minimum p is 0.0005, which stays below 0.01 after Holm's correction over 13 benchmarks
LARGE_NUM_TRAIN_ROWS = 1000  # with fewer rows, dev scores say little about the encoder

Predictions = Callable[[schema.MeasuredSystem, str], Sequence[Records] | None]
"""System and benchmark → the predictions of the cell's runs, by seed; None if not available."""
S = TypeVar("S", bound=schema.MeasuredSystem)


def reference_of(systems: Sequence[S], headline: Mapping[str, str], wanted: str = "") -> S | None:
    """Choose the system that others are compared with: the best one called `wanted`, or the best of all if it is empty.

    The best system has the most benchmarks, and the highest mean headline score if several do (ties go to the first).
    Returns None if nothing was measured.

    Raises:
        UserError: no system is called `wanted`.
    """
    candidates = [one for one in systems if not wanted or wanted in (one.name, one.encoder)]
    if wanted and not candidates:
        advice = hint(wanted, [system.name for system in systems])
        raise UserError(f"leaderboard.reference: no system '{wanted}'; {advice}")
    return max(candidates, key=lambda system: merit(system, headline), default=None)


def merit(system: schema.MeasuredSystem, headline: Mapping[str, str]) -> tuple[int, float]:
    """Sort key of systems: number of benchmarks, then the mean headline score."""
    means = [score.mean for task, metric in headline.items() if (score := system.score(task, metric))]
    return len(means), sum(means) / len(means) if means else 0.0


def shared_averages(systems: Sequence[schema.MeasuredSystem], headline: Mapping[str, str]) -> dict[str, float]:
    """Estimate each system's average over all benchmarks from the benchmarks that systems share, to rank them.

    A score is modeled as the sum of an effect of the system and one of the benchmark (with its dev rows), fitted by
    least squares. Two systems are therefore compared on the benchmarks that both have, directly or through others, and
    a system that lacks an easy benchmark loses nothing. A system with all benchmarks has its average. Systems that
    share no benchmark with those of the best-covered system are left out.
    """
    scores = {
        (system.name, (task, system.cells[task].dev_rows)): score.mean
        for system in systems
        for task, metric in headline.items()
        if (score := system.score(task, metric))
    }
    columns_of = {name: {column for one, column in scores if one == name} for name, _ in scores}
    if not columns_of:
        return {}
    widest = max(columns_of, key=lambda name: len(columns_of[name]))
    reached = set(columns_of[widest])
    while more := {c for columns in columns_of.values() if columns & reached for c in columns} - reached:
        reached |= more
    names = [name for name, columns in columns_of.items() if columns & reached]
    order = [*names, *sorted(reached)]
    design = np.zeros((len(scores), len(order)))
    values: list[float] = []
    for (name, column), value in scores.items():
        if name in names:
            design[len(values), [order.index(name), order.index(column)]] = 1
            values.append(value)
    effects = np.linalg.lstsq(design[: len(values)], np.array(values), rcond=None)[0]
    level = np.mean([effects[order.index(column)] for column in columns_of[widest]])
    return {name: rounded(float(effects[place] + level)) for place, name in enumerate(names)}


def compare_all(
    systems: Sequence[schema.MeasuredSystem],
    headline: Mapping[str, str],
    reference: schema.MeasuredSystem | None,
    predictions: Predictions,
    rows: Mapping[str, Benchmark] = BENCHMARKS,
) -> schema.Comparisons:
    if reference is None:
        return {}
    theirs = {task: runs_of(cell, predictions(reference, task)) for task, cell in reference.cells.items()}
    found: schema.Comparisons = {}
    for system in systems:
        if system.name == reference.name:
            continue
        reasons = {task: why_not(system, reference, task, metric) for task, metric in headline.items()}
        comparisons = []
        for task, reason in reasons.items():
            if not reason:
                ours = runs_of(system.cells[task], predictions(system, task))
                one = compare_runs(task, rows.get(task), headline[task], ours, theirs[task], NUM_RESAMPLES)
                comparisons.append(dataclasses.replace(one, p=_three_digits(one.p)))
        records = {one.benchmark: one for one in correct(comparisons)}
        found[system.name] = {
            task: schema.ReferenceComparison(reason=reason)
            if reason
            else _record(records[task], system.cells[task], reference.cells[task])
            for task, reason in reasons.items()
        }
    return found


def why_not(ours: schema.MeasuredSystem, theirs: schema.MeasuredSystem, task: str, metric: str) -> str:
    """Explain why two systems are not compared on a benchmark; empty if they are."""
    for system in (ours, theirs):
        if system.score(task, metric) is None:
            return f"{system.name} has no score"
    if ours.split != theirs.split:
        return f"{ours.split} against {theirs.split}"
    return schema.dev_rows_differ(ours.cells[task].dev_rows, theirs.cells[task].dev_rows)


def runs_of(cell: schema.CellRecord, predictions: Sequence[Records] | None) -> list[Run]:
    records = predictions or [[] for _ in cell.seeds]
    pretrain_seeds: Sequence[int | None] = cell.pretrain_seeds or [None] * len(cell.seeds)
    return [Run(*run) for run in zip(cell.seeds, cell.values, records, pretrain_seeds, strict=True)]


def _record(found: Comparison, ours: schema.CellRecord, theirs: schema.CellRecord) -> schema.ReferenceComparison:
    difference = rounded(statistics.fmean(ours.values) - statistics.fmean(theirs.values))
    verdict: schema.Verdict = "untested"
    if found.p is not None and found.p_corrected is not None:
        ahead = difference > 0
        verdict = "level"
        if found.p_corrected < LEVEL:
            verdict = "ahead" if ahead else "behind"
        elif found.p < LEVEL:
            verdict = "perhaps ahead" if ahead else "perhaps behind"
    rows = found.rows
    return schema.ReferenceComparison(
        difference=difference,
        low=rounded(rows.low) if rows else None,
        high=rounded(rows.high) if rows else None,
        pretrain_low=rounded(found.pretraining.low) if found.pretraining else None,
        pretrain_high=rounded(found.pretraining.high) if found.pretraining else None,
        row_p=_three_digits(rows.p) if rows else None,
        seed_p=_three_digits(found.seeds.p) if found.seeds else None,
        p=found.p,
        p_corrected=_three_digits(found.p_corrected),
        verdict=verdict,
    )


def _three_digits(p: float | None) -> float | None:
    return None if p is None else float(f"{p:.3g}")


def gap_between(
    pretrained: schema.MeasuredSystem, scratch: schema.MeasuredSystem, headline: Mapping[str, str]
) -> schema.GapToScratch:
    """Compute the difference between a pre-trained encoder and one from scratch, over their common benchmarks.

    The 95 % interval is Student's t over the differences of headline means, one per benchmark. It estimates the gap on
    another sample of benchmarks; the spread over seeds is reported per benchmark.
    """
    assert pretrained.split == scratch.split, "scores of different splits are not comparable"
    per_task: dict[str, schema.TaskGap] = {}
    for task, metric in headline.items():
        ours, theirs = pretrained.score(task, metric), scratch.score(task, metric)
        if ours is None or theirs is None:
            continue
        per_task[task] = schema.TaskGap(
            pretrained=ours.mean,
            scratch=theirs.mean,
            difference=rounded(ours.mean - theirs.mean),
            standard_error=_standard_error(ours, theirs, [pretrained.cells[task], scratch.cells[task]]),
            num_train_rows=min(system.cells[task].num_train_rows for system in (pretrained, scratch)),
        )
    large = [task for task, gap in per_task.items() if gap.num_train_rows >= LARGE_NUM_TRAIN_ROWS]
    return schema.GapToScratch(
        pretrained=pretrained.name,
        scratch=scratch.name,
        split=pretrained.split,
        confidence=CONFIDENCE,
        per_task=per_task,
        all=interval([gap.difference for gap in per_task.values()]),
        large=schema.LargeGapInterval(
            **interval([per_task[task].difference for task in large]).model_dump(),
            min_train_rows=LARGE_NUM_TRAIN_ROWS,
            tasks=large,
        ),
    )


def interval(differences: Sequence[float]) -> schema.GapInterval:
    """Compute mean and two-sided t interval of paired `differences` (points); the interval needs two."""
    count = len(differences)
    mean = statistics.fmean(differences) if count else None
    low = high = None
    if mean is not None and count > 1:
        half = t_quantile(0.5 + CONFIDENCE / 2, count - 1) * statistics.stdev(differences) / math.sqrt(count)
        low, high = rounded(mean - half), rounded(mean + half)
    return schema.GapInterval(
        mean=None if mean is None else rounded(mean),
        low=low,
        high=high,
        num_benchmarks=count,
        num_ahead=sum(difference > 0 for difference in differences),
    )


def _standard_error(
    ours: schema.ScoreSummary, theirs: schema.ScoreSummary, cells: Sequence[schema.CellRecord]
) -> float | None:
    """Compute the standard error of a difference of two means over seeds; None if one has a single run."""
    if ours.std is None or theirs.std is None:
        return None
    variances = [
        score.std**2 / (cell.num_pretrainings if cell.num_pretrainings > 1 else score.num_runs or 1)
        for score, cell in zip((ours, theirs), cells)
        if score.std is not None
    ]
    return rounded(math.sqrt(sum(variances)))


def hint(name: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{nearest[0]}'?" if nearest else f"available: {', '.join(known) or 'none'}"
