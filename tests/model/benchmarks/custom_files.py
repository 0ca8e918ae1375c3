"""Own tasks and their data, as tests write them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml

NAME = "tasks/mine.yaml"
ROWS = [{"text": f"text {number}", "label": ("sour", "glad")[number % 2], "id": f"r{number}"} for number in range(40)]


def put(data_dir: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Rows as a file in the format of its ending, below data/tasks."""
    path = data_dir / "tasks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), delimiter="," if path.suffix == ".csv" else "\t")
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(text.getvalue())


def task(data_dir: Path, **content: Any) -> None:
    """data/tasks/mine.yaml; None takes a key out."""
    (data_dir / "tasks").mkdir(parents=True, exist_ok=True)
    content = {"head": "classes", "train": "train.csv", "dev": "dev.csv", **content}
    kept = {key: value for key, value in content.items() if value is not None}
    (data_dir / NAME).write_text(yaml.safe_dump(kept))
