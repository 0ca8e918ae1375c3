"""leaderboard.csv: a row per system, benchmark and metric, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from typing import Any

from tasks.leaderboard import formatting, schema


def csv_table(board: schema.BoardModel) -> str:
    """Convert the scores of a board to CSV. Comparisons with the reference are on the rows of headline metrics."""
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
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
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
