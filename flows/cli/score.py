"""`cloze score`: predictions against gold answers, by the official rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.scoring.scoring import diagnostic_row, score_files
from model.benchmarks.table import find


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
    """The row of a benchmark, of GLUE's diagnostic set, or of a task of your own by its YAML file, as it lies from here
    or below the project's data folder."""
    if task == "ax":
        return diagnostic_row()
    from model.benchmarks.custom_task import is_custom, row_of

    if not is_custom(task):
        return find(task)
    from tasks.project.project import Project

    data = Project.find().data.resolve()
    given = Path(task).resolve()
    return row_of(given.relative_to(data).as_posix() if given.is_relative_to(data) and given.exists() else task, data)
