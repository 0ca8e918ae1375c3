"""The rows of metrics that MLflow's tables hold, beside those that the jobs' journals and entries say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from model.common.files import read_json
from model.common.metrics_log import read_metrics
from tests.servers import Postgres

Row = tuple[str, int, int, float]
"""Name, time in milliseconds, step, value."""
_STORED = """
    SELECT job.value, run.run_uuid, metric.key, metric.timestamp, metric.step, metric.value
    FROM mlflow.runs run
    JOIN mlflow.tags job ON job.run_uuid = run.run_uuid AND job.key = 'cloze.key'
    LEFT JOIN mlflow.metrics metric ON metric.run_uuid = run.run_uuid
"""


def stored(postgres: Postgres) -> dict[str, tuple[set[str], Counter[Row]]]:
    """Key of a job → its runs in MLflow's tables, and all rows of their metrics."""
    found: dict[str, tuple[set[str], Counter[Row]]] = {}
    for key, run, *row in postgres.query(_STORED):
        runs, rows = found.setdefault(key, (set(), Counter()))
        runs.add(run)
        if row[0] is not None:
            rows[(row[0], row[1], row[2], row[3])] += 1
    return found


def written(root: Path) -> dict[str, Counter[Row]]:
    """Key of a job → the rows that the project at `root` has written for it."""
    found = {}
    for path in (root / "build" / "runs" / "tracking").glob("*.json"):
        entry = read_json(path)
        rows: Counter[Row] = Counter()
        for line, _ in read_metrics(path.parent / entry["journal"]) if entry["journal"] else ():
            for name, value in line["metrics"].items():
                rows[(name, line["time_ms"], line["step"], value)] += 1
        rows.update((name, entry["metrics_ms"][name], entry["step"], value) for name, value in entry["metrics"].items())
        found[entry["key"]] = rows
    return found
