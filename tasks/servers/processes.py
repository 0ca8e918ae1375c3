"""Background processes of `cloze up`: started, found again by process id and start time, and stopped completely.

A process id alone is not enough, since the system reuses it; records also contain the start time. Child processes
inherit a mark in their environment, so that runs whose worker was killed can be found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from pydantic import Field

from model.common.config_base import Settings
from model.common.state_files import read_state, write_state

MARK = "CLOZE_SERVICES"
PRIVATE_UMASK = 0o077
"""For the servers: their databases and logs contain secrets, such as the key of Prefect's encrypted blocks."""
STOP_SECONDS = 20.0  # time for a worker's runs to save their state
_SAME_START_SECONDS = 0.05  # start times have a resolution of 10 ms


class ServerProcess(Settings):
    """Record of a server or worker process."""

    name: str
    """prefect, mlflow or worker."""
    pid: int = Field(gt=0)
    """Process id of a session leader."""
    started: float
    """Seconds since the epoch."""
    address: str = ""
    """Empty for the worker."""
    digest: str = ""
    """Hash of the settings it was started with."""

    @property
    def process(self) -> psutil.Process | None:
        """The process, if it still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _SAME_START_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def private_directory(folder: Path) -> None:
    """Create a directory, and let only its owner enter it and read the files in it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)


def log_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"


def read_process(folder: Path, name: str) -> ServerProcess | None:
    """Read the record of a process, running or not; None without a record."""
    path = folder / f"{name}.json"
    record = read_state(path)
    return ServerProcess.parse(record, str(path)) if record else None


def launch(
    folder: Path,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    umask: int = -1,
    **facts: str,
) -> ServerProcess:
    """Start `command` in a new session, append its output to its log, and record it.

    Args:
        umask: For the process; -1 keeps that of this one.
    """
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
            umask=umask,
            start_new_session=True,
        )
    member = ServerProcess(name=name, pid=process.pid, started=psutil.Process(process.pid).create_time(), **facts)
    write_state(folder / f"{name}.json", member.model_dump())
    return member


def stop(folder: Path, name: str) -> bool:
    """Stop a process and its children, and delete its record; returns whether it was running."""
    member = read_process(folder, name)
    process = member.process if member else None
    if process is not None:
        _end([process, *_children(process)])
    (folder / f"{name}.json").unlink(missing_ok=True)
    return process is not None


def sweep(folder: Path, name: str = "") -> int:
    """Stop processes left behind by the servers and the worker (or one of them); returns their number."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            place, _, member = process.environ().get(MARK, "").rpartition("#")
            if process.pid not in own and place == str(folder) and member.startswith(name):
                left.append(process)
    _end(left)
    return len(left)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _end(processes: Sequence[psutil.Process]) -> None:
    """Send SIGTERM, wait, then send SIGKILL; psutil compares start times before it sends a signal."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=STOP_SECONDS)
    alive += [child for process in alive for child in _children(process)]
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


def wait_until(ready: Callable[[], bool], member: ServerProcess, seconds: float) -> bool:
    """Wait until `ready()` returns True; returns False if the process ends or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if ready():
            return True
        if member.process is None:
            return False
        time.sleep(0.1)
    return False
