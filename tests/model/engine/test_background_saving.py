"""Checkpoints are written while training goes on: what a kill, a second save, a full disk and a new owner find."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from model.common.background import BackgroundTask
from model.common.ownership import Superseded, claim, require_ownership
from model.common.state_files import read_state
from model.config.pretraining import PretrainRun
from model.engine.checkpoint import Checkpoints, load_checkpoint
from tests.model.engine import held_pretrain
from tests.model.engine.test_checkpoint import save
from tests.model.pretraining import MakeRun, command, journal_steps, one_thread, outputs, result_of, train

STEPS = [{"sequence_length": 32, "batch_size": 16, "num_steps": 40, "learning_rate": 3e-3}]
Start = Callable[[PretrainRun, str], subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a training that is disturbed when it writes the optimizer's file of step 16; ends it after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(run: PretrainRun, action: str) -> subprocess.Popen[bytes]:
        program = (held_pretrain.__file__, "step-00000016/optimizer.safetensors", action)
        started.append(subprocess.Popen(command(run, program=program), env=one_thread()))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def saved(run: PretrainRun) -> list[str]:
    """The names of all checkpoints, also of unfinished ones."""
    return sorted(path.name for path in (run.run_dir / "checkpoints").iterdir())


def wait_for(process: subprocess.Popen[bytes], condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.disruption
def test_a_kill_in_mid_write_leaves_the_one_before_and_the_end_is_the_same(
    make_run: MakeRun, tmp_path: Path, start: Start
) -> None:
    whole, killed = make_run("whole", phases=STEPS), make_run("killed", phases=STEPS)
    train(whole)
    process = start(killed, "hold")
    wait_for(process, (tmp_path / "held").exists)
    wait_for(process, lambda: 20 in journal_steps(killed, "train"))  # training goes on meanwhile
    time.sleep(1)
    assert max(journal_steps(killed, "train")) == 20, "the save after step 24 waits for the one before"
    process.kill()
    assert process.wait() == -signal.SIGKILL
    (tmp_path / "held").unlink()
    partial, before = saved(killed)
    assert before == "step-00000008" and partial.startswith(".step-00000016.")
    timing = read_state(killed.run_dir / "timing.json")
    state = load_checkpoint(killed.run_dir / "checkpoints" / before).state
    assert (state["step"], timing["num_tokens"]) == (8, state["num_tokens"])
    train(killed)
    assert outputs(killed) == outputs(whole)
    assert journal_steps(killed, "train") == journal_steps(whole, "train")
    assert saved(killed) == saved(whole) == ["step-00000032", "step-00000040"]
    timing = read_state(killed.run_dir / "timing.json")
    assert timing["num_tokens"] == result_of(killed)["num_tokens_seen"]


@pytest.mark.slow
def test_a_pause_waits_for_the_write_before(make_run: MakeRun, tmp_path: Path, start: Start) -> None:
    run = make_run(phases=STEPS)
    process = start(run, "hold")
    wait_for(process, lambda: (tmp_path / "held").exists() and 20 in journal_steps(run, "train"))
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    (tmp_path / "held").unlink()
    assert process.wait(60) == 0
    status = read_state(run.run_dir / "status.json")
    assert status["state"] == "to be continued" and 20 <= status["step"] <= 24
    first, second = saved(run)
    assert (first, second) == ("step-00000016", f"step-{status['step']:08d}")
    timing = read_state(run.run_dir / "timing.json")
    assert timing["num_tokens"] == load_checkpoint(run.run_dir / "checkpoints" / second).state["num_tokens"]


@pytest.mark.slow
def test_a_new_owner_during_the_write_prevents_the_checkpoint(make_run: MakeRun, tmp_path: Path, start: Start) -> None:
    run = make_run(phases=STEPS).model_copy(update={"attempt": 1})
    process = start(run, "hold")
    wait_for(process, (tmp_path / "held").exists)
    assert claim(run.run_dir, 1, "local", "another") is not None
    (tmp_path / "held").unlink()
    assert process.wait(60) == 0
    assert saved(run) == ["step-00000008"]
    assert read_state(run.run_dir / "status.json")["state"] == "running"  # it writes nothing more
    state = load_checkpoint(run.run_dir / "checkpoints" / "step-00000008").state
    assert read_state(run.run_dir / "timing.json")["num_tokens"] == state["num_tokens"]


@pytest.mark.slow
def test_a_write_that_fails_ends_training_with_its_error(make_run: MakeRun, start: Start) -> None:
    run = make_run(phases=STEPS)
    assert start(run, "limit").wait(120) == errno.EFBIG, "the stage stops: other jobs have no room either"
    status = read_state(run.run_dir / "status.json")
    assert (status["state"], status["fault"]) == ("failed", "internal")
    place = run.run_dir / "checkpoints" / "step-00000016"
    assert status["message"] == f"OSError: [Errno 27] File too large: '{place}'"
    assert saved(run) == ["step-00000008"]
    assert max(journal_steps(run, "train")) == 20, "it is raised at the next save, after step 24"


def test_a_second_task_waits_for_the_first_and_raises_its_error() -> None:
    background, go, done = BackgroundTask("test"), threading.Event(), []

    def first() -> None:
        go.wait(10)
        done.append("first")

    threading.Timer(0.2, go.set).start()
    background.start(first)
    assert done == []
    background.start(lambda: done.append("second"))
    assert done[0] == "first"
    background.wait()
    assert done == ["first", "second"]

    def fail() -> None:
        raise OSError(28, "No space left on device")

    background.start(fail)
    with pytest.raises(OSError, match="No space left"):
        background.start(lambda: done.append("third"))
    background.wait()
    assert done == ["first", "second"]


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="only Linux has a priority for each thread")
def test_the_thread_alone_has_a_low_priority() -> None:
    background, found = BackgroundTask("test"), []
    background.start(lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    background.wait()
    assert found[0] >= 15 > os.getpriority(os.PRIO_PROCESS, 0)


def test_a_superseded_attempt_publishes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    checkpoints = Checkpoints(directory, 2, lambda: require_ownership(tmp_path, 1))
    claim(tmp_path, 0, "local", "1")
    save(checkpoints, 5)
    claim(tmp_path, 1, "local", "2")
    with pytest.raises(Superseded):
        save(checkpoints, 10)
    assert [path.name for path in directory.iterdir()] == ["step-00000005"]
