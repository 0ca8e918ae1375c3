"""`python -P -m tasks.jobs.slurm_gang RUN.json ATTEMPT`: the ranks of one Slurm job, in its batch script.

It owns the run directory, starts `tasks.jobs.node_supervisor` on every node with srun, and decides what a fault means:
if a rank, a supervisor or a connection is lost, all ranks start again in the same allocation, from the newest
checkpoint. Exit codes: 0 done, canceled or superseded; 75 queue again; 2 a user's mistake; 1 failed for good.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType

from model.common.errors import UserError
from model.common.files import write_json
from model.common.ownership import Owner, claim, newest_owner
from model.common.run_dir import RunDir
from model.config.pretraining import PretrainRun, read_run
from tasks.jobs.local_launcher import last_line
from tasks.jobs.node_supervisor import DONE, FAILED, RESUMABLE, USER_ERROR, exit_code_of
from tasks.jobs.supervision import FAULTS

_MOST_LOSSES = 3  # without a new checkpoint in between


class _Canceled:
    """Becomes true if this process gets SIGTERM: with scancel and preemption, but not before the time limit."""

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def __bool__(self) -> bool:
        return self._asked

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True


def main(arguments: list[str]) -> int:
    """Run the job of the file `arguments[0]`, submitted as attempt `arguments[1]`, and return the exit code."""
    canceled = _Canceled()
    path, submitted = Path(arguments[0]), int(arguments[1])
    try:
        run = read_run(path)
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    run_dir = RunDir(run.run_dir)
    num_losses, saved = 0, run_dir.saved_step()
    while not canceled:
        owner = _own(run_dir, submitted)
        if owner is None or run_dir.read_result(run.digest) is not None:
            return DONE
        write_json(path, run.model_copy(update={"attempt": owner.attempt}).model_dump(mode="json"))
        run_dir.status.unlink(missing_ok=True)
        _run_ranks(run, path)
        code = exit_code_of(run)  # rank 0 runs on this node, so its files are current here
        later = newest_owner(run_dir.path)
        if code in (DONE, USER_ERROR) or later != owner:
            return code if later == owner else DONE
        if canceled:
            break
        if code == RESUMABLE:
            return RESUMABLE
        fault = run_dir.read_status().get("fault") or "lost"
        if fault in FAULTS and not FAULTS[fault].retries:
            return FAILED
        num_losses = num_losses + 1 if run_dir.saved_step() == saved else 1
        saved = run_dir.saved_step()
        if num_losses == _MOST_LOSSES:
            message = f"ended {num_losses} times without a new checkpoint: {last_line(run_dir.log)}"
            write_json(run_dir.status, {"state": "failed", "fault": "restarts", "message": message})
            return FAILED
        print(f"a rank was lost after step {saved:,}; starting all ranks again", flush=True)
    return DONE


def _own(run_dir: RunDir, submitted: int) -> Owner | None:
    """Own the run directory; None if another job does. A requeued job follows its own earlier attempts."""
    job_id = os.environ["SLURM_JOB_ID"]
    before = newest_owner(run_dir.path)
    attempt = before.attempt if before is not None else 0
    if before is not None and attempt != submitted and before.id != job_id:
        print(f"attempt {attempt} owns {run_dir.path}; this job ends", flush=True)
        return None
    return claim(run_dir.path, attempt, "slurm", job_id)


def _run_ranks(run: PretrainRun, path: Path) -> None:
    """Run one supervisor per node until all have ended; if one fails, Slurm stops the others."""
    nodes = _scontrol("show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()
    address = re.search(r"NodeAddr=(\S+)", _scontrol("show", "node", nodes[0]))  # names need not be those of hosts
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    count = len(nodes)
    command = ["srun", "--kill-on-bad-exit=1", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):
        command.append(f"--cpus-per-task={cpus}")  # srun does not take it from the job since Slurm 22.05
    command += [sys.executable, "-P", "-m", "tasks.jobs.node_supervisor", str(path)]
    environment = {
        **os.environ,
        "MASTER_ADDR": address[1] if address else nodes[0],
        "MASTER_PORT": str(port),
        "PYTHONSAFEPATH": "1",
    }
    subprocess.run(command, env=environment, check=False, start_new_session=True)


def _scontrol(*words: str) -> str:
    return subprocess.run(["scontrol", *words], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
