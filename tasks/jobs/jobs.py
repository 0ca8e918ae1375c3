"""Training jobs: named by a digest of all that determines their result, and not run again while that result is there.

A job's folder is build/runs/<stage>/<name>; success is its result.json with the job's digest, never an exit code.
Published outputs serve as results too (a clone that pulled them has no build/runs).
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from model.common.errors import Paused
from model.common.run_dir import RunDir
from tasks.jobs.faults import FAULTS, JobFailed
from tasks.jobs.local_launcher import last_line
from tasks.jobs.worker_pool import JobEnd


def supervise(
    name: str, digest: str, run_dir: RunDir, attempt: Callable[[], JobEnd], stop: threading.Event
) -> dict[str, Any]:
    """Make one attempt at a job and say how it ended.

    Returns:
        The job's result.

    Raises:
        Paused: it was asked to stop (or has used its time), and goes on from its checkpoint next time.
        JobFailed: with the fault that tasks.jobs.faults knows.
    """
    run_dir.status.unlink(missing_ok=True)
    end = attempt()
    result = run_dir.read_result(digest)
    if result is not None:
        return result
    status = run_dir.read_status()
    if stop.is_set() or status.get("state") == "to be continued":
        raise Paused(f"{name} is to be continued")
    message = str(status.get("message") or "")
    if status.get("state") == "failed":
        fault = status.get("fault") or "internal"
    elif end.lost or end.signal is not None or status.get("state") == "running":
        # Still "running": the rank that writes the status was gone before it could say why.
        fault = "killed" if end.signal is not None else "lost"
        message = f"{FAULTS[fault].meaning}{f' {end.signal}' if end.signal else ''}"
    else:
        fault, message = (
            "internal",
            last_line(run_dir.log) or f"it ended with code {end.code} and no result",
        )
    raise JobFailed(name, fault if fault in FAULTS else "internal", message, os.path.relpath(run_dir.log))


def watch(
    poll: Callable[[], int | None],
    cancel: Callable[[], None],
    run_dir: RunDir,
    stop: threading.Event,
    on_status: Callable[[dict[str, Any]], None],
) -> JobEnd:
    """Wait for a process, passing its status on; when `stop` is set, ask it to save and stop."""
    while (code := poll()) is None:
        if stop.is_set():
            cancel()
            continue
        on_status(run_dir.read_status())
        time.sleep(0.2)
    return JobEnd(code, -code if code < 0 else None)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder by hard links where the disk can (published files are never edited in place)."""
    shutil.copytree(source, target, copy_function=_link_or_copy, dirs_exist_ok=True)


def unasked(folder: Path, asked: Iterable[str]) -> list[Path]:
    """Job folders in `folder` whose names are not among `asked`."""
    keep = set(asked)
    return (
        sorted(path for path in folder.glob("*") if path.is_dir() and path.name not in keep) if folder.exists() else []
    )


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
