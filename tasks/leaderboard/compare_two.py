"""Compare two systems of any recorded runs, or of this project's fine-tuning stage: parameters, then scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from model.benchmarks.table import BENCHMARKS, Benchmark, find
from model.common.errors import UserError
from tasks.leaderboard import history
from tasks.leaderboard.comparisons import hint, runs_of
from tasks.leaderboard.inputs import BenchmarkMetrics, Inputs, read_system
from tasks.leaderboard.schema import RunRecord, RunSystem, dev_rows_differ
from tasks.leaderboard.settings import Settings, settings_of
from tasks.stats.compare import Comparison, Run, compare_runs, correct


@dataclass(frozen=True)
class Side:
    """One of two systems that are compared."""

    name: str
    origin: str
    """Where its results come from, for the reader."""
    metrics: Mapping[str, str]
    """benchmark → headline metric"""
    dev_rows: Mapping[str, tuple[int, str]]
    """benchmark → number and digest of the reported dev rows"""
    rows: Mapping[str, Benchmark]
    runs: Callable[[str], list[Run]]
    """Benchmark → runs of the selected recipe, with their predictions if there are any."""
    settings: Settings
    """Parameters; empty if they are not recorded."""


def find_side(finetune_dir: Path, home: Path, wanted: str) -> Side:
    """Find `ENCODER`, of the fine-tuning stage in `finetune_dir`, or `ENCODER@RUN`, of a record in `home`.

    Raises:
        UserError: there is no such encoder or run; the message lists those that exist.
    """
    encoder, at, run = wanted.partition("@")
    records = history.read_records(home)
    if not at:
        return encoder_side(finetune_dir, encoder, records)
    return recorded_side(home, history.find_record(records, run), encoder, records)


def encoder_side(finetune_dir: Path, name: str, records: Sequence[RunRecord] = ()) -> Side:
    """Return an encoder of the fine-tuning stage. Its parameters are those of the record with the same jobs.

    Raises:
        UserError: there are no results of it.
    """
    found = read_system(finetune_dir, name)
    if not found:
        encoders = sorted({path.parent.parent.name for path in finetune_dir.glob("*/*/metrics.json")})
        raise UserError(f"{finetune_dir}: no results of an encoder '{name}'; {hint(name, encoders)}")
    inputs = Inputs(finetune_dir)
    jobs = {task: {job.digest for job in (*metrics.jobs, *metrics.pruned)} for task, metrics in found.items()}
    record = next((one for one in records if _has_jobs(one.system(name), jobs)), None)
    return Side(
        name=name,
        origin="this project" + (f", {_described(record)}" if record else ""),
        metrics={task: metrics.selected.best.headline.metric for task, metrics in found.items()},
        dev_rows={task: metrics.selected.best.dev_rows for task, metrics in found.items()},
        rows={task: metrics.row or find(task) for task, metrics in found.items()},
        runs=lambda task: _runs(inputs, found[task]),
        settings=settings_of(record, name) if record else {},
    )


def _has_jobs(system: RunSystem | None, jobs: Mapping[str, set[str]]) -> bool:
    return system is not None and all(jobs.get(task) == set(cell.jobs) for task, cell in system.cells.items())


def _runs(inputs: Inputs, metrics: BenchmarkMetrics) -> list[Run]:
    runs = []
    for run in metrics.selected.runs:
        records = inputs.predictions(run.encoder, metrics.benchmark, run.digest)
        if records is None:
            path = inputs.run(run.encoder, metrics.benchmark, run.digest).predictions
            raise UserError(
                f"{path}: no such file; run `cloze finetune` or `dvc pull` to get the predictions of every run"
            )
        runs.append(Run(run.seed, run.headline.value, records, run.pretrain_seed))
    return runs


def recorded_side(home: Path, record: RunRecord, name: str, records: Sequence[RunRecord]) -> Side:
    """Return an encoder of a recorded run, with the benchmarks on which other `records` have the same system.

    Raises:
        UserError: the run has no such encoder.
    """
    system = record.system(name)
    if system is None:
        raise UserError(f"run {record.title}: no encoder '{name}'; {hint(name, [one.name for one in record.systems])}")
    where = {
        task: (one, its)
        for one, its in reversed(history.same_system(records, record, name) or [(record, system)])
        for task in its.cells
    }

    def runs(task: str) -> list[Run]:
        _, its = where[task]
        return runs_of(its.cells[task], history.read_predictions(home, its, task))

    return Side(
        name=f"{name}@{record.name or record.id}",
        origin=_described(record),
        metrics={task: one.headline[task] for task, (one, _) in where.items()},
        dev_rows={task: its.cells[task].dev_rows for task, (_, its) in where.items()},
        rows=BENCHMARKS | {name: row for one, _ in where.values() for name, row in one.custom.items()},
        runs=runs,
        settings=settings_of(record, name),
    )


def _described(record: RunRecord) -> str:
    parts = [f"run {record.title}", record.written[:16].replace("T", " ")]
    if record.git_commit:
        parts.append(f"commit {record.git_commit[:8]}{'+' if record.git_commit.endswith('+') else ''}")
    return ", ".join(parts)


def compare_sides(first: Side, second: Side, benchmarks: Sequence[str] = ()) -> tuple[list[Comparison], dict[str, str]]:
    """Compare two systems on `benchmarks` (default: all that both have).

    Returns the comparisons, and the benchmarks that cannot be compared with the reason.

    Raises:
        UserError: a benchmark is missing, or the systems have none in common.
    """
    shared = [task for task in first.metrics if task in second.metrics]
    names = " and ".join(dict.fromkeys((first.name, second.name)))
    for task in benchmarks:
        if task not in shared:
            raise UserError(
                f"{names} have no common results on '{task}'; common benchmarks: {', '.join(shared) or 'none'}"
            )
    if not shared:
        raise UserError(
            f"{names} have no common benchmark; fine-tune both on one (finetune.benchmarks, finetune.tasks)"
        )
    reasons = {task: reason for task in benchmarks or shared if (reason := _why_not(first, second, task))}
    compared = [task for task in benchmarks or shared if task not in reasons]
    return correct(
        [
            compare_runs(task, first.rows.get(task), first.metrics[task], first.runs(task), second.runs(task))
            for task in compared
        ]
    ), reasons


def _why_not(first: Side, second: Side, task: str) -> str:
    if first.metrics[task] != second.metrics[task]:
        return f"other metric: {first.metrics[task]} against {second.metrics[task]}"
    return dev_rows_differ(first.dev_rows[task], second.dev_rows[task])
