"""The launchers of cluster jobs by name, and what a run does with a job of any launcher: find, follow and cancel it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model.common.ownership import newest_owner
from model.common.run_dir import RunDir
from tasks.cluster.cluster_job import JobKey, Launcher, LauncherUnavailable, QueuedJob
from tasks.cluster.kubernetes import KubernetesLauncher
from tasks.cluster.slurm import SlurmLauncher
from tasks.jobs.local_launcher import JobEnd
from tasks.params.cluster import ClusterSettings
from tasks.params.root import load_params
from tasks.project.progress import warn

_LAUNCHERS: dict[str, Callable[[ClusterSettings], Launcher]] = {
    "kubernetes": KubernetesLauncher,
    "slurm": SlurmLauncher,
}
_SECONDS_BETWEEN = 2.0  # between two questions to the cluster


def launcher_named(name: str, settings: ClusterSettings) -> Launcher | None:
    """Return the launcher with this name; None for `local`."""
    make = _LAUNCHERS.get(name)
    return None if make is None else make(settings)


def is_queued(run_dir: Path, params_path: Path) -> bool:
    """Check whether a cluster has the job of a run directory; if it does not answer, it may have it."""
    owner = newest_owner(run_dir)
    if owner is None or owner.launcher not in _LAUNCHERS:
        return False
    launcher = _LAUNCHERS[owner.launcher](load_params(params_path).cluster)
    try:
        return launcher.find(JobKey.of(run_dir.name.rpartition("-")[2], run_dir)) is not None
    except LauncherUnavailable:
        return True


def find_patiently(launcher: Launcher, key: JobKey, stop: threading.Event) -> QueuedJob | None:
    """Find a job, and wait while the cluster does not answer, until `stop` is set.

    Raises:
        LauncherUnavailable: the cluster did not answer until then.
    """
    warned = False
    while True:
        try:
            return launcher.find(key)
        except LauncherUnavailable as reason:
            if stop.is_set():
                raise
            if not warned:
                warn(f"{reason}; waiting for it (jobs continue meanwhile)")
            warned = True
        stop.wait(_SECONDS_BETWEEN)


def follow(
    launcher: Launcher, key: JobKey, run_dir: RunDir, stop: threading.Event, on_status: Callable[[dict[str, Any]], None]
) -> JobEnd:
    """Wait until a job has left the cluster's queue; when `stop` is set, cancel it, so that it saves and ends.

    Args:
        on_status: called with the job's status every 0.2 s.

    Raises:
        LauncherUnavailable: `stop` is set, and the cluster does not answer.
    """
    canceled = ""
    looked = -math.inf
    while True:
        if time.monotonic() - looked >= _SECONDS_BETWEEN or (stop.is_set() and not canceled):
            found = find_patiently(launcher, key, stop)
            looked = time.monotonic()
            if found is None:
                on_status(run_dir.read_status())
                return JobEnd(0)
            if stop.is_set() and canceled != found.id:
                with contextlib.suppress(LauncherUnavailable):  # the next round asks again
                    launcher.cancel(found.id)
                    canceled = found.id
        is_running = found is not None and found.is_running
        reason = "" if found is None else found.reason
        on_status(run_dir.read_status() if is_running else {"state": "queued", "reason": reason})
        time.sleep(0.2)
