"""`cloze score`: predictions against gold answers, by the official rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from model.benchmarks.own import is_own, row_of
from model.benchmarks.scoring import score_files
from model.benchmarks.table import Benchmark, find
from tasks.project import Project


def print_scores(task: str, gold: Path, predictions: Path, na_prob: Path | None, na_threshold: float | None) -> None:
    """Print the scores as JSON; what the scores leave out is said on standard error."""
    report = score_files(_row(task), gold, predictions, na_prob, na_threshold)
    if report["num_missing"]:
        print(
            f"cloze: {predictions}: no prediction for {report['num_missing']} of {report['num_rows']} questions; "
            "each counts as 0, as in SQuAD's script",
            file=sys.stderr,
        )
    print(json.dumps(report, indent=1, ensure_ascii=False))


def _row(task: str) -> Benchmark:
    """A benchmark of the table by its name, or an own task by its YAML file: from here, or from data/."""
    if not is_own(task):
        return find(task)
    data_dir, path = Project.find().data.resolve(), Path(task).resolve()
    return row_of(path.relative_to(data_dir).as_posix() if path.is_relative_to(data_dir) else task, data_dir)
