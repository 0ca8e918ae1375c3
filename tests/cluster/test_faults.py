"""After kills, cut links and outdated files on a cluster, training recovers to the bits of the undisturbed run.

CLUSTER_TIMES says how often each fault happens, at random steps (`make cluster`: five times).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from model.common.files import write_json
from tests.cluster.conftest import Measured
from tests.cluster.hosts import FULL_RATE
from tests.cluster.slurm import Slurm
from tests.cluster.training import (
    NUM_STEPS,
    job_log,
    processes,
    run_dir,
    said,
    saved_steps,
    seconds_until,
    step,
    weights,
)
from tests.flows.clone import Clone
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.disruption, pytest.mark.timeout(1800)]

TIMES = int(os.environ.get("CLUSTER_TIMES", "1"))
QUEUED = ("gang", "node1", "node2")  # faults after which Slurm queues the job again
KINDS = ("rank", "supervisor", "slurmd", *QUEUED)
SERIES = [["rank", "supervisor", "slurmd", "gang"], ["node2", "node1"]]
if TIMES > 1:  # training does not wait for slurmd, so it would be over before the last time
    SERIES = [[kind] * TIMES for kind in KINDS if kind != "slurmd"] + [["slurmd"]] * TIMES


def attempt(clone: Clone) -> int:
    """How often the encoder's run directory was claimed."""
    return len(list(run_dir(clone).glob("owner-*.json")))


def disturb(kind: str, slurm: Slurm, clone: Clone) -> Callable[[], None]:
    """Kill something; return what has to be done after the recovery."""
    ours = {
        "rank": "-m model.pretrain",
        "supervisor": "tasks.cluster.node_supervisor",
        "gang": "tasks.cluster.slurm_gang",
    }
    if kind in ours:
        processes(ours[kind], run_dir(clone))[-1].kill()
    elif kind == "slurmd":
        slurm.kill_slurmd("node2")
        return lambda: slurm.start_slurmd("node2")
    else:
        victim = slurm.job_nodes()[int(kind[-1]) - 1]
        slurm.hosts[victim].kill()
        return lambda: slurm.reboot(victim)
    return lambda: None


@pytest.mark.parametrize("series", SERIES, ids=lambda series: "-".join(dict.fromkeys(series)))
def test_what_is_killed_recovers_to_the_same_bits(
    clone: Clone, slurm: Slurm, trained: Path, series: list[str], rng: random.Random, measured: Measured
) -> None:
    process = clone.start("cloze", "pretrain")
    reached = 0
    for kind in series:
        begun = reached + rng.randint(30, 80)  # at least one checkpoint after the fault before
        wait_for(lambda at=begun: step(clone) > at)  # type: ignore[misc]
        before, restarts = attempt(clone), slurm.restarts()
        killed = time.monotonic()
        then = disturb(kind, slurm, clone)
        time.sleep(1)  # the status is written twice a second
        reached = max(begun, step(clone))
        queued = 0.0
        if kind in QUEUED:
            wait_for(lambda at=restarts: slurm.restarts() > at and "RUNNING" in str(slurm.jobs()), 300)  # type: ignore[misc]
            queued = time.monotonic() - killed
            measured(f"{kind}: until Slurm starts the job again", queued)
        wait_for(lambda at=reached: step(clone) > at, 90)  # type: ignore[misc]
        seconds = time.monotonic() - killed - queued
        measured(f"{kind}: until the next step, without that", seconds)
        assert TIMES == 1 or seconds <= 45  # a machine that runs other tests meanwhile may be slower
        assert (attempt(clone) > before) == (kind != "slurmd")
        then()
        slurm.wait_until_up()
    assert process.wait(400) == 0, said(clone)
    assert weights(clone.root / "build" / "pretrain") == weights(trained)


def test_three_losses_without_a_checkpoint_are_the_end(clone: Clone) -> None:
    """The count survives that Slurm queues the job again."""
    clone.params(lambda content: content["pretrain"]["recipe"].update(checkpoint_every_steps=NUM_STEPS))
    process = clone.start("cloze", "pretrain")
    for number in (1, 2, 3):
        wait_for(
            lambda at=number: process.poll() is not None or (attempt(clone) == at + 1 and step(clone) > 1),  # type: ignore[misc]
            240,
        )
        assert process.poll() is None, said(clone)
        victims = processes("-m model.pretrain", run_dir(clone))
        if number == 2:
            victims += processes("tasks.cluster.slurm_gang", run_dir(clone))
        for victim in victims:  # the ranks first: they would save when Slurm queues the job again
            victim.kill()
    assert process.wait(60) == 1
    assert "ended 3 times without a new checkpoint" in said(clone)


def test_a_node_that_sees_old_files_resumes_with_the_others(
    clone: Clone, slurm: Slurm, trained: Path, tmp_path: Path
) -> None:
    """The second node sees an older checkpoint directory, none, and a whole run directory of a minute ago."""
    old = tmp_path / "old"
    (tmp_path / "none").mkdir()
    second = slurm.hosts["node2"]
    resumed = []
    for view in ("now", "old/checkpoints", "none", "old"):
        target = run_dir(clone) / ("checkpoints" if view != "old" else "")
        if view == "old":
            write_json(old / "status.json", {"state": "failed", "fault": "user", "step": 60, "time": time.time() - 60})
        if view != "now":
            second.bind(tmp_path / view, target)
        saved = saved_steps(clone)
        process = clone.start("cloze", "pretrain")
        if view != "old":
            wait_for(lambda at=(saved or [0])[-1] + 30: step(clone) > at)  # type: ignore[misc]
            process.send_signal(signal.SIGINT)
        assert process.wait(240) == (0 if view == "old" else 75), said(clone)
        wait_for(lambda: not slurm.jobs(), 30)
        if saved:
            resumed.append(f"resuming from step-{saved[-1]:08}")
        if view == "now":
            shutil.copytree(run_dir(clone), old)
        else:
            second.unbind(target)
    said_there = [line for line in job_log(clone).splitlines() if "resuming from" in line]
    assert [line[line.index("resuming") :] for line in said_there] == resumed
    assert weights(clone.root / "build" / "pretrain") == weights(trained)


def seconds_per_step(clone: Clone, seconds: float) -> float:
    begun, first = time.monotonic(), step(clone)
    wait_for(lambda: time.monotonic() - begun > seconds and step(clone) > first + 4)
    return (time.monotonic() - begun) / (step(clone) - first)


def test_training_bridges_ten_seconds_without_a_link_and_endures_a_slow_one(
    clone: Clone, slurm: Slurm, trained: Path, rng: random.Random, measured: Measured
) -> None:
    process = clone.start("cloze", "pretrain")
    second = slurm.hosts["node2"]
    for _ in range(TIMES):
        begun = step(clone) + rng.randint(10, 60)
        wait_for(lambda at=begun: step(clone) > at)  # type: ignore[misc]
        second.cut()
        time.sleep(10)
        reached = step(clone)
        second.restore()
        measured("seconds from the link's return to the next step", seconds_until(clone, reached, 45))
    fast = seconds_per_step(clone, 3)
    second.shape("20mbit")
    slow = seconds_per_step(clone, 8)
    second.shape(FULL_RATE)
    measured("ms per step", 1000 * fast)
    measured("ms per step at 20 Mbit/s", 1000 * slow)
    measured("ratio", slow / fast)
    assert process.wait(400) == 0, said(clone)
    assert attempt(clone) == 2, "one submission and one gang: nothing was started again"
    assert weights(clone.root / "build" / "pretrain") == weights(trained)


@pytest.mark.parametrize("number", [1, 2] if TIMES > 1 else [1])
def test_a_link_that_is_cut_for_good(
    clone: Clone, slurm: Slurm, trained: Path, rng: random.Random, measured: Measured, number: int
) -> None:
    """The job restarts on other nodes, and the ranks on the lost one end by themselves."""
    process = clone.start("cloze", "pretrain")
    begun = rng.randint(30, 100)
    wait_for(lambda: step(clone) > begun)
    name = slurm.job_nodes()[number - 1]
    slurm.hosts[name].cut()
    cut = time.monotonic()
    there = [one for one in processes("-m model.pretrain", run_dir(clone)) if slurm.hosts[name].has(one.pid)]
    assert there
    time.sleep(1)
    reached = step(clone)
    measured("seconds from the cut to the next step", seconds_until(clone, reached, 240) + 1)
    wait_for(lambda: not any(one.is_running() for one in there), max(0.1, cut + 90 - time.monotonic()))
    slurm.hosts[name].restore()
    assert process.wait(400) == 0, said(clone)
    assert "Slurm started the job again on node" in job_log(clone)
    assert weights(clone.root / "build" / "pretrain") == weights(trained)


@pytest.mark.parametrize("heals", [True, False] if TIMES > 1 else [True])
def test_nodes_that_only_slurm_can_reach(
    clone: Clone, slurm: Slurm, trained: Path, measured: Measured, heals: bool
) -> None:
    """The nodes' own network fails, and Slurm notices nothing: the job is queued again, three times at most."""
    process = clone.start("cloze", "pretrain")
    wait_for(lambda: step(clone) > 30)
    one, other = (slurm.hosts[name] for name in slurm.job_nodes())
    cut = time.monotonic()
    one.lose(other)
    other.lose(one)
    try:
        wait_for(lambda: "does not answer; the job is queued again" in job_log(clone), 90)
        measured("seconds until the loss is noticed", time.monotonic() - cut)
        if not heals:
            assert process.wait(600) == 1
            measured("seconds until the job has failed", time.monotonic() - cut)
            assert "ended 3 times without a new checkpoint" in said(clone)
            return
    finally:
        one.find(other)
        other.find(one)
    assert process.wait(400) == 0, said(clone)
    assert weights(clone.root / "build" / "pretrain") == weights(trained)


def test_devices_are_requested(clone: Clone, slurm: Slurm) -> None:
    """Slurm allocates GPUs; there are none behind the device files, which is one line."""
    clone.params(lambda content: content["pretrain"]["machine"].update(accelerator="gpu"))
    clone.params(lambda content: content["cluster"]["pretrain"].update(devices=2))
    process = clone.start("cloze", "pretrain")
    wait_for(slurm.jobs)
    shown = slurm.ask("scontrol", "show", "job", slurm.jobs()[0].split()[0])
    assert "TresPerNode=gres:gpu:2" in shown and "NumNodes=2" in shown
    assert process.wait(120) == 2, said(clone)
    assert "Traceback" not in said(clone)
