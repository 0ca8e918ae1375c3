"""Slurm: submit a pre-training job, find it again, and cancel it.

Only text forms of sbatch, squeue and scancel are used that Slurm 21 to 26 share. The name of a Slurm job is that of its
run directory, and its comment has the digest and the directory's path, by which it is found from another process.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from model.common.ownership import newest_owner
from model.common.redaction import without_secrets
from model.common.run_dir import RunDir
from model.config.pretraining import PretrainRun, read_run
from tasks.jobs.local_launcher import JobEnd
from tasks.params.cluster import ClusterSettings
from tasks.project.environment import training_environment
from tasks.project.progress import warn

_SECONDS_BETWEEN = 2.0  # between two questions to Slurm's controller
_SECONDS_TO_SAVE = 300  # before the time limit
_REQUEUED = frozenset({"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_SCRIPT = """
trap : TERM # the steps of the job receive the signal too; this script must outlive them
{python} -P -m tasks.jobs.slurm_gang {run} {attempt} &
gang=$!
while kill -0 "$gang" 2> /dev/null; do # a signal interrupts `wait`
    wait "$gang"
done
wait "$gang"
code=$?
if [ "$code" = 75 ] || [ "$code" -ge 128 ]; then # interrupted, or killed
    echo "job $SLURM_JOB_ID is queued again to resume"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
"""


class SlurmUnavailable(Exception):
    """Slurm's controller does not answer at the moment."""


def script(job: PretrainRun, cluster: ClusterSettings, attempt: int) -> str:
    """Return the batch script of a job, as `submit` passes it to sbatch."""
    wanted, run_dir = cluster.pretrain, RunDir(job.run_dir)
    options = {
        "--job-name": run_dir.path.name,
        "--comment": _comment(job),
        "--nodes": wanted.nodes,
        "--ntasks-per-node": 1,
        "--output": run_dir.log,
        "--open-mode": "append",
        "--partition": wanted.partition,
        "--account": wanted.account,
        "--time": wanted.time_minutes,
        "--cpus-per-task": wanted.cpus,
        "--mem": wanted.memory,
        "--gpus-per-node": job.machine.num_devices if job.machine.accelerator == "gpu" else None,
        # Only the steps of the job get it: they save, and the script queues the job again.
        "--signal": f"TERM@{min(_SECONDS_TO_SAVE, (wanted.time_minutes or 60) * 6)}",
    }
    given = [f"{name}={shlex.quote(str(value))}" for name, value in options.items() if value not in (None, "")]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in (*given, "--requeue", *wanted.options))]
    python = shlex.quote(cluster.python or sys.executable)
    body = _SCRIPT.format(python=python, run=shlex.quote(str(run_dir.pretrain_config)), attempt=attempt)
    return "\n".join(lines) + "\n" + body


def submit(job: PretrainRun, cluster: ClusterSettings, attempt: int, folder: Path) -> str:
    """Submit a job that starts in `folder`, and return its id.

    Raises:
        UserError: Slurm refuses the job; the message is Slurm's.
        SlurmUnavailable: the controller does not answer.
    """
    environment = without_secrets(training_environment({"PYTHONSAFEPATH": "1"}))
    done = _run(["sbatch", "--parsable", f"--chdir={folder}"], script(job, cluster, attempt), environment)
    return done.strip().partition(";")[0]


def find(job: PretrainRun) -> tuple[str, str] | None:
    """Return the id and the state (PENDING, RUNNING, COMPLETING, ...) of a job in the queue, if it is there.

    Raises:
        SlurmUnavailable: the controller does not answer.
    """
    words = ["squeue", "--noheader", f"--user={getpass.getuser()}", f"--name={job.run_dir.name}", "--format=%i|%T|%k"]
    for line in _run(words).splitlines():
        number, state, comment = line.strip().split("|", 2)
        if comment == _comment(job):
            return number, "PENDING" if state in _REQUEUED else state
    return None


def is_queued(run_dir: Path) -> bool:
    """Check whether the job of a run directory is in the queue; if Slurm does not answer, it may be."""
    owner = newest_owner(run_dir)
    if owner is None or owner.launcher != "slurm":
        return False
    try:
        return find(read_run(RunDir(run_dir).pretrain_config)) is not None
    except SlurmUnavailable:
        return True


def cancel(number: str) -> None:
    """Ask a job to save and end; Slurm kills it after its KillWait.

    Raises:
        SlurmUnavailable: the controller does not answer.
    """
    _run(["scancel", number])


def _comment(job: PretrainRun) -> str:
    return f"{job.digest} {job.run_dir}"


def _run(command: list[str], stdin: str = "", environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, input=stdin, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError:
        raise UserError(f"cluster.launcher: slurm, but this machine has no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise SlurmUnavailable(f"{command[0]} does not answer") from None
    if done.returncode == 0:
        return done.stdout
    said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
    text = said[-1].removeprefix(f"{command[0]}: ").removeprefix("error: ")
    if any(
        sign in done.stderr for sign in ("Unable to contact", "Socket timed out", "Connection refused", "timed out")
    ):
        raise SlurmUnavailable(f"{command[0]}: {text}")
    raise UserError(f"{command[0]}: {text}")


def find_patiently(job: PretrainRun, stop: threading.Event) -> tuple[str, str] | None:
    """Like `find`, but wait while the controller does not answer, until `stop` is set.

    Raises:
        SlurmUnavailable: it did not answer until then.
    """
    warned = False
    while True:
        try:
            return find(job)
        except SlurmUnavailable as reason:
            if stop.is_set():
                raise
            if not warned:
                warn(f"{reason}; waiting for it (jobs go on meanwhile)")
            warned = True
        stop.wait(_SECONDS_BETWEEN)


def follow(job: PretrainRun, stop: threading.Event, on_status: Callable[[dict[str, Any]], None]) -> JobEnd:
    """Wait until a job has left the queue; when `stop` is set, cancel it, so that it saves and ends.

    Args:
        on_status: called with the job's status every 0.2 s.

    Raises:
        SlurmUnavailable: `stop` is set, and the controller does not answer.
    """
    run_dir = RunDir(job.run_dir)
    canceled = ""
    looked = -math.inf
    while True:
        if time.monotonic() - looked >= _SECONDS_BETWEEN or (stop.is_set() and not canceled):
            found = find_patiently(job, stop)
            looked = time.monotonic()
            if found is None:
                on_status(run_dir.read_status())
                return JobEnd(0)
            number, state = found
            if stop.is_set() and canceled != number:
                with contextlib.suppress(SlurmUnavailable):  # then once more
                    cancel(number)
                    canceled = number
        on_status(run_dir.read_status() if state != "PENDING" else {"state": "queued"})
        time.sleep(0.2)
