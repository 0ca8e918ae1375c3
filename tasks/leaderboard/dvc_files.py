"""What `dvc metrics` and `dvc plots` read of a leaderboard; dvc.yaml names these files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model.common.files import write_bytes, write_json
from tasks.leaderboard import schema
from tasks.leaderboard.schema import rounded


def write_dvc_files(board: schema.Leaderboard, folder: Path) -> None:
    """Write metrics.json, scores.csv, and pretraining/ENCODER.csv for each encoder with a curve to `folder`.

    metrics.json has the averages and the mean headline score of each measured system, from 0 to 100; scores.csv the
    same scores as rows. The curve of an encoder has the loss on held-out text by step.
    """
    metrics: dict[str, dict[str, float]] = {}
    for system in board.measured:
        averages = {"average": system.average, "glue_average": system.glue_average}
        scores = {task: system.scores[task][board.headline[task]].mean for task in board.tasks if task in system.scores}
        metrics[system.name] = {name: rounded(value) for name, value in averages.items() if value is not None} | scores
    write_json(folder / "metrics.json", metrics)
    rows = [
        {"score_of": f"{system} {task}", "system": system, "benchmark": task, "score": row[task]}
        for system, row in metrics.items()
        for task in board.tasks
        if task in row
    ]
    _write_csv(folder / "scores.csv", rows)
    for name, curve in board.curves.pretrain.items():
        if curve.heldout:
            _write_csv(folder / "pretraining" / f"{name}.csv", curve.heldout)


def _write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())
