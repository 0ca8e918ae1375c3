"""The fork server: jobs in forks of it, cancelled when asked, gone when it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from model.common import process_guard
from model.common.files import write_json
from model.common.state_files import read_state
from model.config.pretraining import PretrainRun
from model.finetune.job import Job
from tests.model.pretraining import command, outputs
from tests.waiting import wait_for

SECONDS = 60.0


class Client:
    """A worker server and its lifeline."""

    def __init__(self, folder: Path) -> None:
        read_end, self.lifeline = process_guard.open_guard_pipe()
        self.errors = folder / "server.err"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "model.fork_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=[read_end],
                env={**os.environ, process_guard.VARIABLE: str(read_end)},
                start_new_session=True,
            )
        os.close(read_end)
        self._buffer = b""

    def end_lifeline(self) -> None:
        """Once: the number may soon be another file's."""
        descriptor, self.lifeline = self.lifeline, -1
        if descriptor >= 0:
            os.close(descriptor)

    def send(self, request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(request) + "\n").encode())
        self.process.stdin.flush()

    def start(self, job: Job | PretrainRun) -> int:
        """Start a job; returns the process number of its fork."""
        path = job.run_dir / ("JOB.json" if isinstance(job, Job) else "RUN.json")
        write_json(path, job.model_dump(mode="json"))
        self.send({"job": str(path)})
        event = self.event()
        assert event["started"] == job.digest, event
        return int(event["pid"])

    def event(self) -> dict[str, Any]:
        """The next event."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + SECONDS
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
            assert ready, f"no event in time: {self.errors.read_text()}"
            chunk = os.read(descriptor, 65536)
            assert chunk, f"the server ended: {self.errors.read_text()}"
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)


def _served(folder: Path) -> Iterator[Client]:
    client = Client(folder)
    yield client
    client.end_lifeline()
    with contextlib.suppress(ProcessLookupError):
        client.process.kill()
    client.process.wait()


@pytest.fixture
def own_client(tmp_path: Path) -> Iterator[Client]:
    """A server that a test may end."""
    yield from _served(tmp_path)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server for all tests that leave it as it was."""
    yield from _served(tmp_path_factory.mktemp("server"))


def wait_until_training(job: Job) -> None:
    wait_for(lambda: job.status_path.exists() and read_state(job.status_path)["step"] > 0, SECONDS)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_jobs_run_in_forks_of_a_server_with_one_thread(own_client: Client, make_job: Callable[..., Job]) -> None:
    jobs = [make_job(name, folder=name, digest=name, num_epochs=1) for name in ("sst2", "squad2", "ner")]
    pids = [own_client.start(jobs[0])]
    assert psutil.Process(own_client.process.pid).num_threads() == 1
    assert own_client.event() == {"ended": "sst2", "code": 0, "signal": None}
    pids += [own_client.start(jobs[1])]
    assert own_client.event()["ended"] == "squad2"
    pids += [own_client.start(jobs[2])]
    assert own_client.event()["ended"] == "ner"
    assert len(set(pids)) == 3
    for job in jobs:
        assert read_state(job.result_path)["digest"] == job.digest
        log = (job.run_dir / "log.txt").read_text().splitlines()
        assert [line.partition(" at ")[0] for line in log[1:3]] == ["training begins", "first step"]
        moments = [datetime.fromisoformat(line.split(" at ")[1]) for line in log if " at " in line]
        assert len(moments) == 4 and moments == sorted(moments)
        assert abs(time.time() - moments[-1].timestamp()) < SECONDS
        headline = read_state(job.result_path)["headline"]
        score = f"dev {headline['metric']} {headline['value']:.1f}"
        assert re.fullmatch(rf"epoch 1/1  loss \d+\.\d{{3}}  {score}", log[3])
        assert log[4].startswith(f"{score} (epoch 1), done at ") and len(log) == 5
    assert own_client.process.stdin is not None
    own_client.process.stdin.close()
    assert own_client.process.wait(SECONDS) == 0


def test_a_fork_gives_the_bytes_that_a_process_of_its_own_gives(client: Client, make_job: Callable[..., Job]) -> None:
    forked, alone = make_job(folder="forked", num_epochs=1), make_job(folder="alone", num_epochs=1)
    client.start(forked)
    client.event()
    write_json(alone.run_dir / "JOB.json", alone.model_dump(mode="json"))
    command = [sys.executable, "-P", "-m", "model.finetune", str(alone.run_dir / "JOB.json")]
    subprocess.run(command, check=True)
    for name in ("result.json", "model/model.safetensors", "predictions.jsonl"):
        assert (forked.run_dir / name).read_bytes() == (alone.run_dir / name).read_bytes()


def test_so_does_a_fork_that_pre_trains_on_two_threads(client: Client, make_run: Callable[..., PretrainRun]) -> None:
    machine = {"accelerator": "cpu", "num_threads": 2}
    forked, alone = make_run(machine=machine, folder="forked"), make_run(machine=machine, folder="alone")
    client.start(forked)
    assert client.event() == {"ended": forked.digest, "code": 0, "signal": None}
    subprocess.run(command(alone), check=True)
    assert outputs(forked) == outputs(alone)


def test_a_cancelled_job_stops_and_others_go_on(client: Client, make_job: Callable[..., Job]) -> None:
    long, short = (
        make_job(folder="long", digest="long", num_epochs=500),
        make_job(folder="short", digest="short", num_epochs=1),
    )
    client.start(long)
    wait_until_training(long)
    client.start(short)
    client.send({"cancel": "long", "grace": 5.0})
    ended = {event["ended"]: event for event in (client.event(), client.event())}
    assert ended["long"]["code"] == 0
    assert read_state(long.status_path)["state"] == "to be continued"
    assert short.result_path.exists() and not long.result_path.exists()


def test_a_job_that_does_not_stop_is_killed(client: Client, make_job: Callable[..., Job]) -> None:
    job = make_job(num_epochs=500)
    pid = client.start(job)
    wait_until_training(job)
    os.kill(pid, signal.SIGSTOP)
    client.send({"cancel": job.digest, "grace": 5.0})
    assert client.event() == {"ended": job.digest, "code": -9, "signal": 9}


def test_users_mistakes_end_with_two_and_a_status(client: Client, make_job: Callable[..., Job], tmp_path: Path) -> None:
    job = make_job()
    write_json(job.run_dir / "JOB.json", {**job.model_dump(mode="json"), "benchmark": "sst-2"})
    client.send({"job": str(job.run_dir / "JOB.json")})
    client.event()
    assert client.event() == {"ended": job.digest, "code": 2, "signal": None}
    status = read_state(job.status_path)
    assert (status["state"], status["fault"]) == ("failed", "user")
    assert "did you mean 'sst2'" in (job.run_dir / "log.txt").read_text()
    for request in ({"job": str(tmp_path / "none.json")}, {"jobs": 1}, 5, {"cancel": ["x"], "grace": 5.0}):
        client.send(request)
        if not (isinstance(request, dict) and "cancel" in request):
            assert client.event()["refused"] == request


@pytest.mark.disruption
@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
@pytest.mark.parametrize("end", ["server is killed", "lifeline ends", "standard input ends"])
def test_nothing_is_left_when_the_server_or_its_parent_is_gone(
    own_client: Client, make_job: Callable[..., Job], end: str
) -> None:
    job = make_job(num_epochs=500)
    pid = own_client.start(job)
    wait_until_training(job)
    if end == "server is killed":
        own_client.process.kill()
    elif end == "lifeline ends":
        own_client.end_lifeline()
    else:
        assert own_client.process.stdin is not None
        own_client.process.stdin.close()
    own_client.process.wait(5)
    wait_for(lambda: gone(pid), SECONDS)
    assert not job.result_path.exists()


def test_what_a_job_prints_does_not_get_among_the_events(client: Client, make_job: Callable[..., Job]) -> None:
    job = make_job(data_dir=Path("none"))
    client.start(job)
    assert client.event()["code"] == 2
    assert "no such file" in (job.run_dir / "log.txt").read_text()
