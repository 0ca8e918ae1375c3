"""Scores as tables: leaderboard.csv for spreadsheets and data frames, and the files that dvc.yaml names."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model.common.files import write_bytes, write_json
from tasks.leaderboard import formatting, schema
from tasks.leaderboard.schema import rounded
from tasks.project.pages import csv_cell


def csv_table(board: schema.BoardModel) -> str:
    """Convert the scores of a board to CSV, with a row per system, benchmark and metric.

    Comparisons with the reference are on the rows of headline metrics.
    """
    rows: list[dict[str, Any]] = []
    for system in board.systems:
        for task in board.tasks:
            for metric, score in system.scores.get(task, {}).items():
                row = {
                    "system": system.name,
                    "kind": system.kind,
                    "split": system.split,
                    "benchmark": task,
                    "metric": metric,
                    "headline": metric == board.headline[task],
                    **score.model_dump(),
                }
                if isinstance(system, schema.MeasuredSystem):
                    row |= _evaluation(system.cells[task])
                    if row["headline"]:
                        row |= _comparison(board, system, task)
                elif isinstance(system, schema.QuotedSystem):
                    row["source"] = f"BERT paper, {system.source[task]}"
                rows.append(row)
    return _csv(rows)


def write_dvc_files(board: schema.Leaderboard, folder: Path) -> None:
    """Write metrics.json, scores.csv, and pretraining/ENCODER.csv for each encoder with a curve to `folder`.

    `dvc metrics` and `dvc plots` read these files. metrics.json has the averages and the mean headline score of each
    measured system, from 0 to 100; scores.csv has the same scores as rows. The curve of an encoder has the loss on
    held-out text by step.
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
    write_bytes(folder / "scores.csv", _csv(rows).encode())
    for name, curve in board.curves.pretrain.items():
        if curve.heldout:
            write_bytes(folder / "pretraining" / f"{name}.csv", _csv(curve.heldout).encode())


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _evaluation(cell: schema.CellRecord) -> dict[str, Any]:
    return {
        "seeds": " ".join(map(str, cell.seeds)),
        "num_degenerate": cell.num_degenerate,
        "recipe": formatting.recipe(cell.recipe),
        **cell.model_dump(include={"num_train_rows", "num_dev_rows", "num_selection_rows", "dev_digest"}),
        "selected": " ".join(cell.selected),
    }


def _comparison(board: schema.BoardModel, system: schema.MeasuredSystem, task: str) -> dict[str, Any]:
    found = board.comparisons.get(system.name, {}).get(task)
    if found is None:
        return {}
    keys = ("difference", "low", "high", "p_corrected", "verdict", "reason")
    return {"reference": board.reference, **{key: getattr(found, key) for key in keys}}
