"""All thirteen benchmarks with three seeds: no finished job runs again, whichever process is killed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from model.benchmarks.table import BENCHMARKS
from model.common.files import read_json
from tasks.jobs.resources import num_cores
from tests.flows.clone import Clone, forget

pytestmark = [pytest.mark.slow, pytest.mark.disruption]

SEEDS = [1, 2, 3]
MOST_SECONDS = 400


def asked(content: dict[str, Any]) -> None:
    content["finetune"] |= {"seeds": SEEDS, "benchmarks": dict.fromkeys(BENCHMARKS)}
    content["finetune"]["benchmarks"]["rte"] = {"after": "mnli"}


def servers(clone: Clone) -> list[int]:
    """Return the fork servers of a clone's run, of which the jobs are forks."""
    found = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        if process.info["cwd"] == str(clone.root) and "model.fork_server" in (process.info["cmdline"] or []):
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                if parent is None or "model.fork_server" not in parent.cmdline():
                    found.append(process.pid)
    return found


def jobs(runs: Path) -> dict[str, int]:
    """Return the running jobs with their processes."""
    found = {}
    for log in runs.glob("*/log.txt"):
        lines = [line for line in log.read_text().splitlines() if line.startswith("started as process")]
        if lines and not (log.parent / "result.json").exists():
            pid = int(lines[-1].split()[3])
            if psutil.pid_exists(pid):
                found[log.parent.name] = pid
    return found


def starts(folder: Path) -> list[float]:
    """Return when a job was started, according to its log."""
    lines = (folder / "log.txt").read_text().splitlines()
    moments = [line.split(" at ")[1] for line in lines if line.startswith("started as process")]
    return [datetime.fromisoformat(moment).timestamp() for moment in moments]


def harass(
    clone: Clone, runs: Path, process: subprocess.Popen[str], chance: random.Random, spared: set[str], num_kills: int
) -> int:
    """Kill -9 jobs, and once the fork server, of a running stage at random moments; how many jobs that may have hit.

    A job is hit once by itself (`spared` are those that were): three in a row would end it for good.
    """
    hit = 0
    for number in range(num_kills):
        time.sleep(chance.uniform(0.3, 1.5))
        if process.poll() is not None:
            break
        running = jobs(runs)
        if number == num_kills // 2:
            hit += len(running)
            victims = servers(clone)
        else:
            victims = [pid for name, pid in running.items() if name not in spared][:1]
            spared |= {name for name, pid in running.items() if pid in victims}
            hit += len(victims)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return hit


def test_thirteen_benchmarks_and_three_seeds_survive_kill_9(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    clone.params(asked)
    runs = clone.root / "build" / "runs" / "finetune"
    shutil.rmtree(runs)
    forget(clone, "finetune", "leaderboard")
    chance = random.Random(5)
    spared: set[str] = set()
    process = clone.start("cloze", "run")
    clone.wait_for(lambda: len(clone.job_times("finetune")) >= 3, process)
    hit = harass(clone, runs, process, chance, spared, 6)
    clone.wait_for(lambda: len(clone.job_times("finetune")) >= 25, process)
    hit += num_cores()  # jobs that run now; one may end and another begin before the kill
    clone.kill(process)
    before = clone.job_times("finetune")

    process = clone.start("cloze", "run")
    clone.wait_for(lambda: len(clone.job_times("finetune")) > len(before), process)
    hit += harass(clone, runs, process, chance, spared, 6)
    assert process.wait(MOST_SECONDS) == 0, (clone.root / "test.log").read_text()[-3000:]

    after = clone.job_times("finetune")
    assert {name: after[name] for name in before} == before
    folders = [path.parent for path in runs.glob("*/result.json")]
    single = [folder for folder in folders if "members" not in read_json(folder / "JOB.json")]
    assert len(single) == 2 * len(BENCHMARKS) * len(SEEDS)
    for folder in folders:
        assert max(starts(folder)) <= (folder / "result.json").stat().st_mtime, f"{folder.name} ran again"
    assert sum(len(starts(folder)) for folder in folders) <= len(folders) + hit
    for system in clone.board()["systems"]:
        if system["kind"] != "quoted":
            assert set(system["scores"]) == set(BENCHMARKS)
            assert all(cell["num_runs"] <= len(SEEDS) for row in system["scores"].values() for cell in row.values())
    metrics = read_json(clone.root / "build/finetune/pretrained/rte/metrics.json")
    assert metrics["after"] == ["mnli"] and len(metrics["jobs"]) == len(SEEDS)
