"""Supervision of a training job: one attempt, its outcome, and the table of faults that decides about retries.

A job is identified by a hash of everything that determines its result, and does not run again while that result exists.
It succeeded if its run directory (or the published output) contains a result with that hash; exit codes do not count.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.common.errors import Paused
from model.common.files import FULL
from model.common.run_dir import RunDir
from model.common.state_files import write_state
from tasks.jobs.local_launcher import JobEnd, WorkerPool, end, last_line, module_command, start
from tasks.jobs.resources import out_of_memory_kills

_GRACE_SECONDS = 60.0
_IDLE_SECONDS = 3.0


@dataclass(frozen=True)
class FaultPolicy:
    """How often a job with this fault is retried, and a message for users."""

    retries: int
    meaning: str


# Keyed by "fault" in status.json, by that of JobEnd, or by "killed" and "lost" if the process left none.
FAULTS = {
    "user": FaultPolicy(0, "invalid data or parameters"),
    "non-finite": FaultPolicy(0, "the loss is not finite: lower the learning rate"),
    "hopeless": FaultPolicy(0, "the loss stayed too high: lower the learning rate, or see give_up_above"),
    "internal": FaultPolicy(1, "internal error"),
    "memory": FaultPolicy(1, "out of memory: use fewer workers or a smaller batch"),
    "killed": FaultPolicy(2, "killed by signal"),
    "lost": FaultPolicy(2, "the worker process exited"),
    "node": FaultPolicy(0, "the node was lost"),  # the queue moves the job to another node
    "restarts": FaultPolicy(0, "ended repeatedly without a new checkpoint"),
}


class JobFailed(Exception):
    """A job failed permanently. `name` is the job, `fault` a key of FAULTS, `message` one line."""

    def __init__(self, name: str, fault: str, message: str, log: str) -> None:
        super().__init__(f"{name}: {message or FAULTS[fault].meaning} (log: {log})")
        self.name = name
        self.fault = fault


class JobsFailed(Exception):
    """Some jobs of a stage failed permanently; the others finished and keep their results."""

    def __init__(self, stage: str, failures: Sequence[JobFailed]) -> None:
        num = len(failures)
        lines = "".join(f"\n  {failure}" for failure in failures)
        super().__init__(f"{stage}: {num} job{'s' if num > 1 else ''} failed:{lines}")
        self.failures = list(failures)

    @property
    def exit_code(self) -> int:
        """2 if every failure is a user error, else 1."""
        return 2 if all(failure.fault == "user" for failure in self.failures) else 1


def supervise(
    name: str, digest: str, run_dir: RunDir, attempt: Callable[[], JobEnd], stop: threading.Event
) -> dict[str, Any]:
    """Make one attempt at a job and return its result.

    Raises:
        Paused: the job was stopped (or has used its time) and resumes from its checkpoint in the next run.
        JobFailed: with a fault of FAULTS.
        OSError: there is no room for the job's files; the other jobs need not try.
    """
    end = attempt()
    result = run_dir.read_result(digest)
    if result is not None:
        return result
    if end.code in FULL:
        raise OSError(end.code, os.strerror(end.code), str(run_dir.path))
    status = run_dir.read_status()
    has_left = end.fault == "node" and status.get("state") != "failed"
    if stop.is_set() or (status.get("state") == "to be continued" and not has_left):
        raise Paused(f"{name} was interrupted; run the same command again to resume")
    message = str(status.get("message") or "")
    if status.get("state") == "failed":
        fault = status.get("fault") or "internal"
    elif end.fault == "memory":
        fault, message = "memory", "killed by the system, which ran out of memory"
    elif end.fault or end.signal is not None or status.get("state") == "running":
        # Still "running": the rank that writes the status ended before it could report why.
        fault = end.fault or ("killed" if end.signal is not None else "lost")
        message = f"{FAULTS[fault].meaning}{f' {end.signal}' if end.signal else ''}"
    else:
        fault, message = "internal", last_line(run_dir.log) or f"exited with code {end.code} and no result"
    raise JobFailed(name, fault if fault in FAULTS else "internal", message, os.path.relpath(run_dir.log))


def run_attempt(
    module: str,
    digest: str,
    config_path: Path,
    run_dir: RunDir,
    pool: WorkerPool,
    stop: threading.Event,
    *,
    num_ranks: int = 1,
    device: str | None = None,
    on_status: Callable[[dict[str, Any]], None] = lambda _: None,
) -> JobEnd:
    """Run a job until it ends, in a fork of the pool's server, or several ranks of `module` in new processes.

    When `stop` is set, the job is asked to save and exit, and is killed after a grace period. The period is short if
    there is nothing to save: before its first step, a process may compile for a minute without handling signals.

    Args:
        device: GPU of a job with one rank; None uses all that are visible, or the CPU.
        on_status: called with the job's status meanwhile.
    """

    def grace_seconds() -> float:
        is_idle = run_dir.read_status().get("step", 0) <= run_dir.saved_step()
        return _IDLE_SECONDS if is_idle else _GRACE_SECONDS

    def meanwhile() -> None:
        on_status(run_dir.read_status())

    run_dir.status.unlink(missing_ok=True)
    if num_ranks == 1:
        return pool.run(digest, config_path, stop, device, grace_seconds, meanwhile)
    process = start(module_command(module, str(config_path), num_ranks=num_ranks), run_dir.log, with_secrets=False)
    grace = 0.0
    try:
        write_state(run_dir.handle, {"pid": process.pid, "started": time.time()})
        while process.poll() is None and not stop.is_set():
            meanwhile()
            time.sleep(0.2)
        if stop.is_set():
            grace = grace_seconds()
    finally:
        code = end(process, grace)
    return JobEnd(code, -code if code < 0 else None)


def watch_memory(attempt: Callable[[], JobEnd]) -> JobEnd:
    """Make an attempt at a job that runs next to others, and return how it ended.

    If the kernel's out-of-memory killer ended it, the fault is memory, so that the queue repeats it alone.
    """
    kills = out_of_memory_kills()
    end = attempt()
    if end.signal is not None and out_of_memory_kills() != kills:
        return dataclasses.replace(end, fault="memory")
    return end


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory, by hard links where the file system supports them (published files are never modified)."""
    shutil.copytree(source, target, copy_function=_link_or_copy, dirs_exist_ok=True)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
