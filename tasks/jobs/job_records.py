"""The jobs of a project as `cloze logs` lists them: name, state, score, duration, time of the last change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model.common.run_dir import RunDir
from model.common.state_files import read_state
from tasks.project.progress import shortened
from tasks.project.project import Project
from tasks.project.workspace import is_locked

_HEADER = ("job", "state", "score", "seconds", "when")


@dataclass(frozen=True)
class JobRecord:
    """A job that has a log. `score` is that of the benchmark, or the last loss of a pre-training."""

    name: str
    run_dir: RunDir
    state: str
    score: str
    seconds: float | None
    changed: float
    """Time of the last change, in seconds since the epoch."""

    def content(self) -> dict[str, Any]:
        """Entry of `cloze logs --json`."""
        values = {name: getattr(self, name) for name in ("name", "state", "score", "seconds", "changed")}
        return values | {"log": str(self.run_dir.log)}

    def matches(self, part: str) -> bool:
        """Check whether the name or the run directory contains `part`."""
        return part in self.name or part in self.run_dir.path.name


def read_jobs(project: Project) -> list[JobRecord]:
    """Read all jobs with a log, newest first."""
    is_active = is_locked(project)
    run_dirs = [RunDir(path) for stage in ("pretrain", "finetune") for path in (project.runs / stage).glob("*")]
    records = [_read(run_dir, is_active) for run_dir in run_dirs if run_dir.log.exists()]
    return sorted(records, key=lambda record: record.changed, reverse=True)


def job_table(records: Sequence[JobRecord], width: int | None) -> list[str]:
    """Lay the jobs out as lines of at most `width` characters; None does not cut names."""
    rows = [_HEADER]
    for record in records:
        seconds = "" if record.seconds is None else f"{record.seconds:,.0f}"
        when = time.strftime("%m-%d %H:%M", time.localtime(record.changed))
        rows.append((record.name, record.state, record.score, seconds, when))
    name_width, *widths = (max(len(row[column]) for row in rows) for column in range(len(_HEADER)))
    if width is not None:
        name_width = max(10, min(name_width, width - sum(widths) - 2 * len(widths)))
    return [
        "  ".join([shortened(row[0], name_width).ljust(name_width), *map(_aligned, row[1:], widths, range(4))]).rstrip()
        for row in rows
    ]


def _aligned(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column in (0, 3) else text.rjust(width)


def _read(run_dir: RunDir, is_active: bool) -> JobRecord:
    path = run_dir.path
    is_pretraining = run_dir.pretrain_config.exists()
    config = read_state(run_dir.pretrain_config if is_pretraining else run_dir.finetune_config)
    name = f"pretrain/{config.get('name', path.name)}" if is_pretraining else config.get("name") or path.name
    result, status = read_state(run_dir.result), run_dir.read_status()
    timing = read_state(run_dir.timing)
    state = str(status.get("state", "starting"))
    if result:
        state = "done"
    elif state in ("running", "starting") and not is_active:
        state = "interrupted"
    elif state == "to be continued":
        state = "paused"
    elif state == "running" and status.get("num_steps"):
        state = f"{status['step'] / status['num_steps']:.0%}"
    changed = max(file.stat().st_mtime for file in (run_dir.log, run_dir.status, run_dir.result) if file.exists())
    return JobRecord(name, run_dir, state, _score(result, status), timing.get("seconds"), changed)


def _score(result: dict[str, Any], status: dict[str, Any]) -> str:
    headline = result.get("headline") or status.get("headline")
    if headline:
        return f"{headline['value']:.1f}"
    loss = result.get("final", {}).get("heldout/loss", status.get("loss"))
    return "" if loss is None else f"loss {loss:.2f}"
