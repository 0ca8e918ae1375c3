"""`cloze pretrain` submits to a real Slurm with nodes of their own: equal bits, re-attachment, cancellation."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.common.files import read_json
from tests.cluster.conftest import Measured
from tests.cluster.slurm import Slurm
from tests.cluster.training import NUM_STEPS, logged_steps, run_dir, said, saved_steps, step, weights
from tests.flows.cli.test_server_commands import Up
from tests.flows.clone import PREFECT_API, Clone, commit
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.disruption]


def curve_delays(clone: Clone, is_over: Callable[[], bool]) -> list[float]:
    """Watch MLflow's database until a training is over: for each point, the seconds from its step to its arrival."""
    delays: dict[int, float] = {}
    query = "SELECT step, timestamp FROM metrics WHERE key = 'train/loss' AND timestamp > ?"
    begun = time.time() * 1000
    database = sqlite3.connect(f"file:{clone.root}/.cloze/mlflow/mlflow.db?mode=ro", uri=True, timeout=60)
    with contextlib.closing(database):
        while not is_over():
            for at, milliseconds in database.execute(query, (begun,)).fetchall():
                delays.setdefault(at, time.time() - milliseconds / 1000)
            time.sleep(0.1)
    return sorted(delays.values())


def test_two_nodes_train_the_weights_of_two_ranks(
    clone: Clone, slurm: Slurm, trained: Path, measured: Measured
) -> None:
    planned = clone.run("cloze", "run", "--dry-run")
    assert "#SBATCH --nodes=2\n" in planned and planned.count("#!/bin/bash") == 1, "scratch stays here"
    process = clone.start("cloze", "pretrain")
    wait_for(slurm.jobs)
    [line] = slurm.jobs()
    assert f"#SBATCH --job-name={run_dir(clone).name}\n" in planned
    digest = read_json(run_dir(clone) / "RUN.json")["digest"]
    assert line.split()[2:4] == [run_dir(clone).name, digest]
    refused = clone.run("cloze", "pretrain", code=2)
    assert "another run uses this directory" in refused and len(refused.strip().splitlines()) == 1
    delays = curve_delays(clone, lambda: process.poll() is not None)
    assert process.returncode == 0, said(clone)
    measured("seconds from a step to its point in MLflow, median", delays[len(delays) // 2])
    measured("seconds from a step to its point in MLflow, longest", delays[-1])
    assert len(delays) == NUM_STEPS // 5 and delays[-1] < 5
    assert weights(clone.root / "build" / "pretrain") == weights(trained)
    assert not slurm.jobs()
    steps = logged_steps(clone)
    assert len(steps) == len(set(steps)), "no step is logged twice"


def test_a_killed_flow_finds_its_job_again(clone: Clone, slurm: Slurm, trained: Path, measured: Measured) -> None:
    process = clone.start("cloze", "pretrain")
    wait_for(lambda: slurm.jobs() and step(clone) > 20)
    [before] = [line.split()[0] for line in slurm.jobs()]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    reached = step(clone)
    kept = clone.run("cloze", "gc", "--all", "--dry-run")
    assert run_dir(clone).name not in kept, "the job is in the queue"
    started = time.monotonic()
    again = clone.start("cloze", "pretrain")
    wait_for(lambda: "follows the Slurm job" in said(clone), 60)
    measured("seconds from the command to its attachment", time.monotonic() - started)
    assert [line.split()[0] for line in slurm.jobs()] == [before]
    assert again.wait(240) == 0, said(clone)
    assert step(clone) >= reached and (run_dir(clone) / "owner-2.json").exists()
    assert not (run_dir(clone) / "owner-3.json").exists(), "one submission and one gang"
    steps = logged_steps(clone)
    assert len(steps) == len(set(steps)), "no step is trained twice"
    assert weights(clone.root / "build" / "pretrain") == weights(trained)


def test_a_run_that_is_canceled_on_the_page(clone: Clone, slurm: Slurm, measured: Measured) -> None:
    """A deployment's run, canceled through Prefect's API as the page does it."""
    clone.environment.pop(PREFECT_API)
    commit(clone)
    up = Up(clone)
    inside = slurm.login.inside
    try:
        up.up(cron=None)
        run = inside(lambda: up.start("pipeline/pipeline"))
        wait_for(lambda: step(clone) > 30)
        inside(lambda: up.ask(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}}))
        asked = time.monotonic()
        wait_for(lambda: not slurm.jobs(), 15)
        measured("seconds from Cancel to an empty queue", time.monotonic() - asked)
        state = inside(lambda: up.wait(run, 30))
        measured("seconds from Cancel to the state Cancelled", time.monotonic() - asked)
        assert state["type"] == "CANCELLED"
        assert saved_steps(clone)[-1] == step(clone) > 30
        killed = inside(lambda: up.runs("attributes.status = 'KILLED'"))
        assert any(one["info"]["run_name"] == "pretrain/pretrained" for one in killed)
    finally:
        clone.run("cloze", "down")


@pytest.mark.parametrize("how", ["Ctrl-C", "scancel"])
def test_a_canceled_job_saves_and_is_submitted_again(clone: Clone, slurm: Slurm, how: str) -> None:
    process = clone.start("cloze", "pretrain")
    wait_for(lambda: step(clone) > 60)
    if how == "Ctrl-C":
        process.send_signal(signal.SIGINT)
    else:
        slurm.ask("scancel", slurm.jobs()[0].split()[0])
    wait_for(lambda: not slurm.jobs(), 15)
    assert process.wait(60) == 75, said(clone)
    saved = saved_steps(clone)[-1]
    assert saved == step(clone) > 60
    again = clone.start("cloze", "pretrain")
    wait_for(lambda: slurm.jobs() and step(clone) > saved)
    again.send_signal(signal.SIGINT)
    assert again.wait(60) == 75


def test_two_encoders_share_the_nodes(clone: Clone, slurm: Slurm) -> None:
    def two(content: dict[str, Any]) -> None:
        first = content["pretrain"]["encoders"][0]
        content["finetune"].pop("epochs_factor", None)
        content["pretrain"].update(encoders=[first, {**first, "name": "other", "seed": 7}], num_parallel=2)
        content["pretrain"]["recipe"]["phases"][0]["num_steps"] = 100

    clone.params(two)
    process = clone.start("cloze", "pretrain")
    most = 0
    while process.poll() is None:
        most = max(most, sum("RUNNING" in line for line in slurm.jobs()))
        time.sleep(0.5)
    assert process.returncode == 0 and most == 2, said(clone)
    assert {path.name for path in (clone.root / "build" / "pretrain").iterdir()} == {"pretrained", "other"}


def test_a_refused_submission_is_one_line(clone: Clone) -> None:
    clone.params(lambda content: content["cluster"]["pretrain"].update(partition="nowhere"))
    said = clone.run("cloze", "pretrain", code=2)
    assert "sbatch: " in said and "nvalid partition" in said and "Traceback" not in said


def test_without_slurm(clone: Clone) -> None:
    clone.environment["PATH"] = str(clone.root / ".tools")
    assert "this machine has no sbatch, squeue, scancel" in clone.run("cloze", "run", code=2)
