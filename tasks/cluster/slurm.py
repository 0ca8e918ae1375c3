"""Slurm: submit a job, find it again, and cancel it.

Only text forms of sbatch, squeue and scancel are used that Slurm 21 to 26 share. The name of a Slurm job is that of its
run directory, and its comment has the digest and the directory's path, by which it is found from another process.
"""

from __future__ import annotations

import getpass
import shlex
import shutil
import subprocess
import sys

from model.common.errors import UserError
from model.common.redaction import without_secrets
from tasks.cluster.cluster_job import ClusterJob, JobKey, LauncherUnavailable, QueuedJob, address_towards
from tasks.params.cluster import ClusterSettings, JobResources
from tasks.project.environment import training_environment

_SECONDS_TO_SAVE = 300  # before the time limit
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_SILENCE = ("Unable to contact", "Socket timed out", "Connection refused", "timed out")
_GANG_TRAP = "trap : TERM # the steps of the job receive the signal too; this script must outlive them"
_WORKER_TRAPS = """trap 'canceled=1; kill -TERM "$child"' TERM
trap 'kill -USR1 "$child"' USR1 # the time limit is near"""
_SCRIPT = """
{traps}
{python} -P -m {module} {arguments} &
child=$!
while kill -0 "$child" 2> /dev/null; do # a signal interrupts `wait`
    wait "$child"
done
wait "$child"
code=$?
if [ -z "$canceled" ] && {{ [ "$code" = 75 ] || [ "$code" -ge 128 ]; }}; then # interrupted, or killed
    echo "job $SLURM_JOB_ID is queued again to resume"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
"""


class SlurmLauncher:
    """Submits jobs with sbatch."""

    title = "Slurm"

    def __init__(self, settings: ClusterSettings) -> None:
        self._python = settings.python or sys.executable

    def problem(self) -> str:
        """Name the commands of Slurm that this machine lacks."""
        missing = [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]
        return f"this machine has no {', '.join(missing)}" if missing else ""

    def manifest(self, job: ClusterJob) -> str:
        """Return the batch script that `submit` passes to sbatch."""
        wanted = job.resources
        options = {
            "--job-name": job.key.name,
            "--comment": job.key.comment,
            "--array": f"0-{wanted.nodes - 1}" if job.is_workers else None,
            "--nodes": 1 if job.is_workers else wanted.nodes,
            "--ntasks-per-node": 1,
            "--chdir": job.folder,
            "--output": job.log,
            "--open-mode": "append",
            "--partition": wanted.partition,
            "--account": wanted.account,
            "--time": wanted.time_minutes,
            "--cpus-per-task": wanted.cpus,
            "--mem": wanted.memory,
            "--gpus-per-node": job.num_gpus or None,
            # The steps of a job get it (of workers, which are no steps, the script): they save, and the script queues
            # the job again.
            "--signal": f"{'B:USR1' if job.is_workers else 'TERM'}@"
            f"{min(_SECONDS_TO_SAVE, (wanted.time_minutes or 60) * 6)}",
        }
        given = [f"{name}={shlex.quote(str(value))}" for name, value in options.items() if value not in (None, "")]
        lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in (*given, "--requeue", *wanted.options))]
        body = _SCRIPT.format(
            traps=_WORKER_TRAPS if job.is_workers else _GANG_TRAP,
            python=shlex.quote(self._python),
            module="tasks.cluster.dask_worker" if job.is_workers else "tasks.cluster.slurm_gang",
            arguments=shlex.join(job.arguments),
        )
        return "\n".join(lines) + "\n" + body

    def submit(self, job: ClusterJob) -> str:
        """Submit a job, and return its id.

        Raises:
            UserError: Slurm refuses the job; the message is Slurm's.
            LauncherUnavailable: the controller does not answer.
        """
        environment = without_secrets(training_environment({"PYTHONSAFEPATH": "1"}))
        done = _run(["sbatch", "--parsable"], self.manifest(job), environment)
        return done.strip().partition(";")[0]

    def find(self, key: JobKey) -> QueuedJob | None:
        """Return the job with this key, if it is in the queue.

        Raises:
            LauncherUnavailable: the controller does not answer.
        """
        words = ["squeue", "--noheader", f"--user={getpass.getuser()}", f"--name={key.name}", "--format=%F|%T|%r|%k"]
        for line in _run(words).splitlines():
            number, state, reason, comment = line.strip().split("|", 3)
            if comment == key.comment:
                return QueuedJob(number, state not in _WAITING, "" if reason == "None" else reason)
        return None

    def local_address(self, resources: JobResources) -> str:
        """Return the address from which this machine reaches the first node of the partition.

        Raises:
            UserError: the partition has no nodes, or a node's name has no address.
            LauncherUnavailable: the controller does not answer.
        """
        partition = [f"--partition={resources.partition}"] if resources.partition else []
        nodes = _run(["sinfo", "--noheader", "--Node", "--format=%o", *partition]).split()
        if not nodes:
            raise UserError(f"sinfo: the partition '{resources.partition}' has no nodes")
        try:
            return address_towards(nodes[0])
        except OSError as error:
            raise UserError(f"the Slurm node {nodes[0]} cannot be reached from here ({error.strerror})") from None

    def cancel(self, job_id: str) -> None:
        """Ask a job to save and end; Slurm kills it after its KillWait.

        Raises:
            LauncherUnavailable: the controller does not answer.
        """
        _run(["scancel", job_id])


def _run(command: list[str], stdin: str = "", environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, input=stdin, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError:
        raise UserError(f"cluster.launcher: slurm, but this machine has no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise LauncherUnavailable(f"{command[0]} does not answer") from None
    if done.returncode == 0:
        return done.stdout
    said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
    text = said[-1].removeprefix(f"{command[0]}: ").removeprefix("error: ")
    if any(sign in done.stderr for sign in _SILENCE):
        raise LauncherUnavailable(f"{command[0]}: {text}")
    raise UserError(f"{command[0]}: {text}")
