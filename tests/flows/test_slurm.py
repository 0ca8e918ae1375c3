"""`cloze pretrain` submits to a real Slurm with two nodes; what is killed recovers to the same bits."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from model.common.files import read_json
from tests.flows.clone import Clone
from tests.slurm import Slurm, why_not

pytestmark = [pytest.mark.slow, pytest.mark.disruption, pytest.mark.skipif(bool(why_not()), reason=str(why_not()))]
NUM_STEPS = 1500
MACHINE = {"accelerator": "cpu", "precision": "fp32", "num_threads": 1, "compile": "off"}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    slurm = Slurm(tmp_path_factory.mktemp("slurm"))
    slurm.start()
    yield slurm
    slurm.close()


@pytest.fixture(scope="module")
def trained(served: Clone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """build/pretrain after a training by two ranks on this machine."""
    clone = longer(served.copy(tmp_path_factory.mktemp("local") / "clone"))
    clone.params(lambda content: content["pretrain"].update(machine=MACHINE | {"num_devices": 2}))
    clone.run("cloze", "pretrain")
    return clone.root / "build" / "pretrain"


@pytest.fixture
def clone(served: Clone, slurm: Slurm, tmp_path: Path) -> Iterator[Clone]:
    clone = longer(served.copy(tmp_path / "clone"))
    clone.params(lambda content: content["pretrain"].update(machine=MACHINE))
    clone.params(lambda content: content.update(cluster={"launcher": "slurm", "pretrain": {"nodes": 2}}))
    clone.environment |= slurm.environment
    yield clone
    for line in slurm.jobs():
        slurm.ask("scancel", line.split()[0])
    wait_for(lambda: not slurm.jobs(), 30)


def longer(clone: Clone) -> Clone:
    def change(content: dict[str, Any]) -> None:
        recipe = content["pretrain"]["recipe"]
        recipe["phases"][0]["num_steps"] = NUM_STEPS
        recipe["checkpoint_every_steps"] = 50

    clone.params(change)
    for folder in (clone.root / "build" / "runs" / "pretrain").iterdir():
        shutil.rmtree(folder)  # of the run before
    return clone


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come so far"
        time.sleep(0.1)


def run_dir(clone: Clone) -> Path:
    found = list((clone.root / "build" / "runs" / "pretrain").glob("pretrained-*"))
    return found[0] if found else clone.root / "none"


def step(clone: Clone) -> int:
    path = run_dir(clone) / "status.json"
    return int(read_json(path).get("step", 0)) if path.exists() else 0


def processes(part: str, folder: Path) -> list[psutil.Process]:
    """Processes whose command line contains both texts, oldest first."""
    found = [one for one in psutil.process_iter(["cmdline", "create_time"]) if one.info["cmdline"]]
    lines = [(one, " ".join(one.info["cmdline"])) for one in found]
    mine = [one for one, line in lines if part in line and str(folder) in line]
    return sorted(mine, key=lambda one: float(one.info["create_time"]))


def weights(folder: Path) -> bytes:
    return (folder / "pretrained" / "model.safetensors").read_bytes()


def log(clone: Clone) -> str:
    return (clone.root / "test.log").read_text()


def test_two_nodes_train_the_weights_of_two_ranks(clone: Clone, slurm: Slurm, trained: Path) -> None:
    planned = clone.run("cloze", "run", "--dry-run")
    assert "#SBATCH --nodes=2\n" in planned and planned.count("#!/bin/bash") == 1, "scratch stays here"
    process = clone.start("cloze", "pretrain")
    wait_for(slurm.jobs)
    [line] = slurm.jobs()
    assert f"#SBATCH --job-name={run_dir(clone).name}\n" in planned
    digest = read_json(run_dir(clone) / "RUN.json")["digest"]
    assert line.split()[2:4] == [run_dir(clone).name, digest]
    wait_for(lambda: step(clone) > 20)
    # Somebody else who runs the same command meanwhile is told to wait, and starts nothing.
    assert process.poll() is None and len(slurm.jobs()) == 1
    assert process.wait(240) == 0, log(clone)
    assert weights(clone.root / "build" / "pretrain") == weights(trained)
    assert not slurm.jobs()
    journal = [yaml.safe_load(line) for line in (run_dir(clone) / "journal.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in journal if "train/loss" in str(row)]
    assert len(steps) == len(set(steps)), "no step is logged twice"


def test_a_killed_flow_finds_its_job_again(clone: Clone, slurm: Slurm, trained: Path) -> None:
    process = clone.start("cloze", "pretrain")
    wait_for(lambda: slurm.jobs() and step(clone) > 20)
    [before] = [line.split()[0] for line in slurm.jobs()]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    reached = step(clone)
    kept = clone.run("cloze", "gc", "--all", "--dry-run")
    assert run_dir(clone).name not in kept, "the job is in the queue"
    again = clone.start("cloze", "pretrain")
    wait_for(lambda: "follows the Slurm job" in log(clone), 60)
    assert [line.split()[0] for line in slurm.jobs()] == [before]
    assert again.wait(240) == 0, log(clone)
    assert step(clone) >= reached and (run_dir(clone) / "owner-2.json").exists()
    assert not (run_dir(clone) / "owner-3.json").exists(), "one submission and one gang"
    assert weights(clone.root / "build" / "pretrain") == weights(trained)


@pytest.mark.parametrize("how", ["Ctrl-C", "scancel"])
def test_a_canceled_job_saves_and_is_submitted_again(clone: Clone, slurm: Slurm, how: str) -> None:
    process = clone.start("cloze", "pretrain")
    wait_for(lambda: step(clone) > 60)
    if how == "Ctrl-C":
        process.send_signal(signal.SIGINT)
    else:
        slurm.ask("scancel", slurm.jobs()[0].split()[0])
    asked = time.monotonic()
    wait_for(lambda: not slurm.jobs(), 15)
    assert time.monotonic() - asked < 15
    assert process.wait(60) == 75, log(clone)
    saved = max(int(path.name.partition("-")[2]) for path in (run_dir(clone) / "checkpoints").glob("step-*"))
    assert saved == step(clone) > 60
    again = clone.start("cloze", "pretrain")
    wait_for(lambda: slurm.jobs() and step(clone) > saved)
    again.send_signal(signal.SIGINT)
    assert again.wait(60) == 75


def test_what_is_killed_recovers_to_the_same_bits(clone: Clone, slurm: Slurm, trained: Path) -> None:
    process = clone.start("cloze", "pretrain")
    wait_for(lambda: step(clone) > 55)
    folder = run_dir(clone)
    for victim in ("-m model.pretrain", "tasks.jobs.node_supervisor", "tasks.jobs.slurm_gang"):
        wait_for(lambda: len(processes("-m model.pretrain", folder)) >= 2 and step(clone) > 55)
        reached = step(clone)
        processes(victim, folder)[-1].kill()
        if victim == "tasks.jobs.slurm_gang":
            break  # Slurm itself waits two minutes before it starts a requeued job
        wait_for(lambda at=reached: step(clone) > at, 60)
    slurm.ask("scontrol", "update", f"JobId={slurm.jobs()[0].split()[0]}", "StartTime=now")
    assert process.wait(400) == 0, log(clone)
    assert weights(clone.root / "build" / "pretrain") == weights(trained)


def test_three_losses_without_a_checkpoint_are_the_end(clone: Clone, slurm: Slurm) -> None:
    clone.params(lambda content: content["pretrain"]["recipe"].update(checkpoint_every_steps=NUM_STEPS))
    process = clone.start("cloze", "pretrain")
    killed: set[int] = set()
    while process.poll() is None and len(killed) < 3:
        for rank in processes("-m model.pretrain", clone.root)[-1:]:
            if step(clone) > 1 and rank.pid not in killed:
                killed.add(rank.pid)
                rank.kill()
                time.sleep(1)
        time.sleep(0.1)
    assert process.wait(60) == 1
    assert "ended 3 times without a new checkpoint" in log(clone) and not slurm.jobs()


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
    assert process.returncode == 0 and most == 2, log(clone)
    assert {path.name for path in (clone.root / "build" / "pretrain").iterdir()} == {"pretrained", "other"}


def test_a_refused_submission_is_one_line(clone: Clone) -> None:
    clone.params(lambda content: content["cluster"]["pretrain"].update(partition="nowhere"))
    said = clone.run("cloze", "pretrain", code=2)
    assert "sbatch: " in said and "nvalid partition" in said and "Traceback" not in said


def test_without_slurm(clone: Clone) -> None:
    clone.environment["PATH"] = str(clone.root / ".tools")
    assert "this machine has no sbatch, squeue, scancel" in clone.run("cloze", "run", code=2)
