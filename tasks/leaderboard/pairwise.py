"""Two encoders compared on the benchmarks that both were fine-tuned on, from the published build."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from model.benchmarks.table import Benchmark, find, in_order
from model.common.errors import UserError
from model.common.files import read_json
from model.common.run_dir import RunDir
from tasks.leaderboard.inputs import BenchmarkMetrics
from tasks.stats.compare import Run, compare_runs, judge
from tasks.stats.selection import select


def compare_encoders(finetune_dir: Path, first: str, second: str, benchmarks: list[str]) -> list[dict[str, Any]]:
    """Both encoders by the runs that the leaderboard shows (the recipe best on dev, degenerate runs left out), on
    `benchmarks`, or on all that both have.

    Raises:
        UserError: an encoder or benchmark that is not there, or runs on different dev rows.
    """
    found = [_benchmarks(finetune_dir, name) for name in (first, second)]
    shared = in_order(name for name in found[0] if name in found[1])
    for name in benchmarks:
        if name not in shared:
            raise UserError(
                f"{finetune_dir}: {first} and {second} have no results on '{name}' in common; "
                f"they have {', '.join(shared) or 'none'}"
            )
    if not shared:
        raise UserError(f"{finetune_dir}: {first} and {second} have no benchmark in common; run cloze finetune")
    return judge([_compare(finetune_dir, first, second, name) for name in benchmarks or shared])


def _benchmarks(finetune_dir: Path, encoder: str) -> list[str]:
    encoders = sorted({path.parent.parent.name for path in finetune_dir.glob("*/*/metrics.json")})
    if encoder not in encoders:
        nearest = difflib.get_close_matches(encoder, encoders, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"there are {', '.join(encoders) or 'none'}"
        raise UserError(f"{finetune_dir}: no results of an encoder '{encoder}'; {hint}")
    return sorted(path.parent.name for path in finetune_dir.glob(f"{encoder}/*/metrics.json"))


def _compare(finetune_dir: Path, first: str, second: str, benchmark: str) -> dict[str, Any]:
    folders = [finetune_dir / encoder / benchmark for encoder in (first, second)]
    metric = ""
    systems: list[list[Run]] = []
    for folder in folders:
        path = RunDir(folder).metrics
        cell = select(BenchmarkMetrics.parse(read_json(path), str(path)).jobs)
        metric = cell.best.headline.metric
        systems.append([Run(run.seed, run.headline.value, _records(folder / "jobs" / run.digest)) for run in cell.runs])
    return compare_runs(_row(folders[0], benchmark), metric, systems[0], systems[1])


def _records(job_dir: Path) -> list[dict[str, Any]]:
    path = RunDir(job_dir).predictions
    if not path.is_file():
        raise UserError(f"{path}: no such file; run cloze finetune (or dvc pull) to have every run's predictions")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _row(folder: Path, benchmark: str) -> Benchmark:
    """The benchmark's row as the published model tells it, for tasks of the user's own; else the table's."""
    path = RunDir(folder).model / "head.json"
    row = read_json(path).get("row") if path.is_file() else None
    return Benchmark.parse(row, str(path)) if row else find(benchmark)
