"""All thirteen benchmarks with three seeds: whatever is killed, whenever, no job that has ended runs again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from model.benchmarks.table import BENCHMARKS
from model.files import read_json
from tests.flows.clone import Clone

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline")]

SEEDS = [1, 2, 3]
MOST_SECONDS = 400


def asked(content: dict[str, Any]) -> None:
    content["finetune"] |= {"seeds": SEEDS, "benchmarks": dict.fromkeys(BENCHMARKS)}
    content["finetune"]["benchmarks"]["rte"] = {"after": "mnli"}


def workers(clone: Clone) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The fork servers of a clone's run, and the jobs in forks of them."""
    servers, jobs = [], []
    for process in psutil.process_iter(["cwd", "cmdline", "ppid"]):
        if process.info["cwd"] == str(clone.root) and "model.workers" in (process.info["cmdline"] or []):
            (servers if "model.workers" not in _parent(process) else jobs).append(process)
    return servers, jobs


def _parent(process: psutil.Process) -> list[str]:
    try:
        parent = process.parent()
        return parent.cmdline() if parent is not None else []
    except psutil.Error:
        return []


def starts(folder: Path) -> list[float]:
    """When a job was started, from its log."""
    lines = (folder / "log.txt").read_text().splitlines()
    return [float(line.split(" at ")[1]) for line in lines if line.startswith("started as process")]


def harass(clone: Clone, process: subprocess.Popen[str], chance: random.Random, num_kills: int) -> int:
    """Kill -9 jobs and fork servers of a running stage at random moments; how many jobs that may have hit."""
    hit = 0
    for number in range(num_kills):
        time.sleep(chance.uniform(0.5, 2.5))
        if process.poll() is not None:
            break
        servers, jobs = workers(clone)
        victims = servers if number % 3 == 2 else jobs
        if victims:
            hit += len(jobs) if number % 3 == 2 else 1
            try:
                os.kill(chance.choice(victims).pid, signal.SIGKILL)
            except ProcessLookupError:
                hit -= 1
    return hit


def test_thirteen_benchmarks_and_three_seeds_survive_kill_9(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    clone.params(asked)
    runs = clone.root / "build" / "runs" / "finetune"
    shutil.rmtree(clone.root / "build" / "finetune")
    shutil.rmtree(runs)
    chance = random.Random(5)
    process = clone.start("cloze", "run")
    clone.wait_for(lambda: len(clone.job_times("finetune")) >= 3, process)
    hit = harass(clone, process, chance, 6)
    clone.wait_for(lambda: len(clone.job_times("finetune")) >= 25, process)
    hit += len(workers(clone)[1])
    clone.kill(process)
    before = clone.job_times("finetune")

    process = clone.start("cloze", "run")
    clone.wait_for(lambda: len(clone.job_times("finetune")) > len(before), process)
    hit += harass(clone, process, chance, 6)
    assert process.wait(MOST_SECONDS) == 0, (clone.root / "test.log").read_text()[-3000:]

    after = clone.job_times("finetune")
    assert {name: after[name] for name in before} == before
    folders = [path.parent for path in runs.glob("*/result.json")]
    jobs = [folder for folder in folders if "members" not in read_json(folder / "JOB.json")]
    assert len(jobs) == 2 * len(BENCHMARKS) * len(SEEDS)
    for folder in folders:
        assert max(starts(folder)) <= (folder / "result.json").stat().st_mtime, f"{folder.name} ran again"
    assert sum(len(starts(folder)) for folder in folders) <= len(folders) + hit
    for system in clone.board()["systems"]:
        if system["kind"] != "quoted":
            assert set(system["scores"]) == set(BENCHMARKS)
            assert all(cell["num_runs"] <= len(SEEDS) for row in system["scores"].values() for cell in row.values())
    metrics = read_json(clone.root / "build/finetune/pretrained/rte/metrics.json")
    assert metrics["after"] == ["mnli"] and len(metrics["jobs"]) == len(SEEDS)
