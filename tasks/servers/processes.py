"""Processes that outlive the command that started them: found again by pid and start time, ended without a rest.

A pid alone names nothing: the system gives it to another process when the first has ended. A record therefore holds
the start time, too. What a member starts carries a mark in its environment, so that a run whose worker was killed is
still known as ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from pydantic import Field

from model.common.config_base import Settings
from model.common.files import write_json
from tasks.project.workspace import read_record

MARK = "CLOZE_SERVICES"
STOP_SECONDS = 20.0  # what a worker's runs get to save their state
_SAME_START_SECONDS = 0.05  # a start time is given to 10 ms


class ServerProcess(Settings):
    """A running server or worker, as its record says."""

    name: str
    """prefect, mlflow or worker."""
    pid: int = Field(gt=0)
    """Its process, which leads a session of its own."""
    started: float
    """When that process was started, in seconds since 1970: with it, the pid names no other process."""
    address: str = ""
    """Where it answers; empty for the worker."""
    digest: str = ""
    """Of the settings it was started with."""

    @property
    def process(self) -> psutil.Process | None:
        """The process, if it still runs and is the one of the record."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _SAME_START_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def record_path(folder: Path, name: str) -> Path:
    """Where a member's record lies."""
    return folder / f"{name}.json"


def log_path(folder: Path, name: str) -> Path:
    """Where a member writes."""
    return folder / f"{name}.log"


def read_process(folder: Path, name: str) -> ServerProcess | None:
    """The member of this name as recorded, running or not; None without a record."""
    record = read_record(record_path(folder, name))
    return ServerProcess.parse(record, str(record_path(folder, name))) if record else None


def launch(
    folder: Path, name: str, command: Sequence[str], environment: Mapping[str, str], cwd: Path, **facts: str
) -> ServerProcess:
    """Start `command` on its own, output appended to its log, and record it."""
    folder.mkdir(parents=True, exist_ok=True)
    log = log_path(folder, name)
    if log.exists() and log.stat().st_size > 64 * 2**20:
        log.replace(log.with_suffix(".log.1"))
    log.touch(0o600)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**environment, MARK: f"{folder}#{name}"},
            cwd=cwd,
            start_new_session=True,
        )
    member = ServerProcess(name=name, pid=process.pid, started=psutil.Process(process.pid).create_time(), **facts)
    write_json(record_path(folder, name), member.model_dump())
    return member


def stop(folder: Path, name: str) -> bool:
    """End a member and all that it started, and forget it; whether it ran. Another's process is never touched."""
    member = read_process(folder, name)
    process = member.process if member else None
    if process is not None:
        _end([process, *_children(process)], STOP_SECONDS)
    record_path(folder, name).unlink(missing_ok=True)
    return process is not None


def sweep(folder: Path, name: str = "") -> int:
    """End what the members (or that one) have left behind; how many processes that were."""
    left = list(marked(folder, name))
    _end(left, STOP_SECONDS)
    return len(left)


def marked(folder: Path, name: str = "") -> Iterator[psutil.Process]:
    """This user's processes that members of `folder` (or that one) started, this one and its parents excepted."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            place, _, member = process.environ().get(MARK, "").rpartition("#")
            if process.pid not in own and place == str(folder) and member.startswith(name):
                yield process


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _end(processes: Sequence[psutil.Process], seconds: float) -> None:
    """SIGTERM, time to save, SIGKILL; psutil looks at start times before it sends a signal."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _gone, alive = psutil.wait_procs(processes, timeout=seconds)
    alive += [child for process in alive for child in _children(process)]
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


def wait_until(ready: Callable[[], bool], member: ServerProcess, seconds: float) -> bool:
    """Ask `ready()` until it says yes; False when the member ends or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if ready():
            return True
        if member.process is None:
            return False
        time.sleep(0.1)
    return False
