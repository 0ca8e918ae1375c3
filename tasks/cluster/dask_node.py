"""A node of a Dask cluster: functions that its worker runs for the stage of another machine.

Dask passes these functions by name, and records of JSON's types. `hold` keeps a fork server for the stage; the tasks of
`run_job` run their jobs on it. Both leave the worker's thread pool, so that the number of its threads limits nothing,
and end when Dask releases them: when the stage has ended, its process was killed, or the worker lost the scheduler.
"""

from __future__ import annotations

import functools
import os
import platform
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import model
import tasks
from model.common.files import digest_of, digest_of_file, write_json
from model.common.run_dir import RunDir
from model.config.hardware import HardwareOptions
from tasks.jobs.local_launcher import JobEnd, WorkerPool
from tasks.jobs.resources import SHARE, find_resources, num_cores
from tasks.jobs.supervision import run_attempt, watch_memory

TOKEN = "token"
"""Name of the file in a stage's folder by which a node shows that it sees the same directory."""
_SECONDS_BETWEEN = 0.2
_SECONDS_TO_OPEN = 60.0


class _Session(NamedTuple):
    """One stage on this node."""

    pool: WorkerPool
    stop: threading.Event
    """Set when the stage was asked to stop, or has ended."""
    running: set[str]
    """Digests of jobs."""


_sessions: dict[str, _Session] = {}
_leaving = threading.Event()  # this process was asked to end


@functools.cache
def software() -> dict[str, str]:
    """Versions on which results depend: of Python and torch, and a digest of Cloze's source files.

    Read once per process, so that a worker that runs older code than its files shows it.
    """
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    files = sorted(file for package in (model, tasks) for file in Path(package.__file__ or "").parent.rglob("*.py"))
    code = digest_of([[file.name, digest_of_file(file)] for file in files])
    return {"Cloze": code, "Python": platform.python_version(), "torch": torch}


def report(
    folder: str,
    machine: dict[str, Any],
    num_workers: int,
    memory_bytes: int,
    jobs_per_device: int | Literal["auto"],
) -> dict[str, Any]:
    """Return the node's host, software and free resources, the token in the stage's `folder` (empty if there is none),
    and whether the node is about to leave."""
    token = Path(folder) / TOKEN
    num_workers = num_workers or min(num_cores(), int(os.environ.get("SLURM_CPUS_ON_NODE", num_cores())))
    found = find_resources(HardwareOptions.parse(machine, "machine"), num_workers, memory_bytes, jobs_per_device)
    memory = found.memory_bytes
    if not memory_bytes and (limit := os.environ.get("SLURM_MEM_PER_NODE")):
        memory = min(memory, int(SHARE * int(limit) * 2**20))
    return {
        "host": socket.gethostname(),
        "software": software(),
        "token": token.read_text(encoding="utf-8") if token.is_file() else "",
        "is_leaving": _leaving.is_set(),
        "num_jobs": found.num_jobs,
        "memory_bytes": memory,
        "devices": dict(found.devices),
    }


def hold(session_id: str, log_path: str, environment: dict[str, str]) -> None:
    """Keep a fork server for a stage, until Dask releases this task.

    Args:
        log_path: file that the fork server's output is appended to.
        environment: variables of its processes.
    """
    is_wanted = _leave_thread_pool()
    os.environ.update(environment)
    with WorkerPool(Path(log_path)) as pool:
        pool.warm_up()
        session = _sessions[session_id] = _Session(pool, threading.Event(), set())
        try:
            while is_wanted():
                time.sleep(_SECONDS_BETWEEN)
        finally:
            session.stop.set()
            del _sessions[session_id]


def run_job(
    session_id: str, module: str, document: dict[str, Any], config_path: str, num_ranks: int, device: str | None
) -> dict[str, Any]:
    """Run one attempt at a job.

    Args:
        document: content of its file `config_path`, which this node writes: by the network file system, it could come
            later than this request.

    Returns:
        The fields of its JobEnd, and `has_result`.
    """
    is_wanted = _leave_thread_pool()
    path = Path(config_path)
    run_dir, digest = RunDir(path.parent), document["digest"]
    deadline = time.monotonic() + _SECONDS_TO_OPEN
    while (session := _sessions.get(session_id)) is None:
        if not is_wanted() or time.monotonic() > deadline:
            return {**asdict(JobEnd(1, fault="node")), "has_result": False}
        time.sleep(_SECONDS_BETWEEN)
    session.running.add(digest)
    try:
        write_json(path, document)
        pool, stop = session.pool, session.stop
        end = watch_memory(
            lambda: run_attempt(module, digest, path, run_dir, pool, stop, num_ranks=num_ranks, device=device)
        )
    finally:
        session.running.discard(digest)
    has_result = run_dir.read_result(digest) is not None
    if not has_result and (_leaving.is_set() or not is_wanted()):
        return {**asdict(end), "fault": "node", "has_result": False}
    return {**asdict(end), "has_result": has_result}


def stop_jobs(session_id: str) -> None:
    """Ask the jobs of a stage to save and end."""
    if session_id in _sessions:
        _sessions[session_id].stop.set()


def leave(seconds: float) -> None:
    """Ask all jobs of this process to save and end, and wait for them at most so long."""
    _leaving.set()
    sessions = list(_sessions.values())
    for session in sessions:
        session.stop.set()
    deadline = time.monotonic() + seconds
    while any(session.running for session in sessions) and time.monotonic() < deadline:
        time.sleep(_SECONDS_BETWEEN)


def _leave_thread_pool() -> Callable[[], bool]:
    """Let the worker's thread pool start another thread; return a function that checks whether Dask wants this task."""
    from distributed import Status, get_worker, secede

    worker, key = get_worker(), get_worker().get_current_task()
    secede()

    def is_wanted() -> bool:
        task = worker.state.tasks.get(key)
        # After `secede`, the event loop takes a moment to note it.
        is_known = task is not None and task.state in ("executing", "long-running")
        return is_known and worker.status in (Status.running, Status.paused)

    return is_wanted
