"""What the runs of a leaderboard cost: seconds, energy and memory, as the jobs' folders tell.

No output holds it (equal inputs must give equal bytes): it goes to the history and to MLflow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model.common.files import read_json
from model.common.run_dir import RunDir

_SUMS = ("seconds", "cpu_seconds", "energy_joules")
_PEAKS = ("peak_memory_bytes", "peak_device_memory_bytes")


def costs(runs_dir: Path, systems: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """system → {"total": cost, "tasks": {benchmark: cost}} of the jobs in `runs_dir` (build/runs/finetune).

    A cost has num_jobs, num_timed (jobs of other machines leave no timing here) and, over the timed ones, the sums of
    seconds, cpu_seconds and energy_joules and the greatest peak_memory_bytes, each where every timed job tells
    it. All recipes count, since the best one was found by trying all.
    """
    folders = {path.name.rpartition("-")[2]: path for path in runs_dir.glob("*") if path.is_dir()}
    found = {}
    for system in systems:
        tasks = {task: _cost(cell["jobs"], folders) for task, cell in system["cells"].items()}
        jobs = [digest for cell in system["cells"].values() for digest in cell["jobs"]]
        found[system["name"]] = {"total": _cost(jobs, folders), "tasks": tasks}
    return found


def _cost(digests: Sequence[str], folders: Mapping[str, Path]) -> dict[str, Any]:
    timings = [timing for digest in digests if digest in folders for timing in _timing(folders[digest])]
    cost: dict[str, Any] = {"num_jobs": len(digests), "num_timed": len(timings)}
    for names, gather in ((_SUMS, sum), (_PEAKS, max)):
        for name in names:
            values = [timing[name] for timing in timings if timing.get(name) is not None]
            if values and len(values) == len(timings):
                cost[name] = round(gather(values), 3)
    return cost


def _timing(folder: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        return [read_json(RunDir(folder).timing)]
    return []
