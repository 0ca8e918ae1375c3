"""`python -P -m tasks.cluster.slurm_gang RUN.json ATTEMPT`: the ranks of one Slurm job, in its batch script.

It starts `tasks.cluster.node_supervisor` on every node with srun. If a rank or a supervisor is lost, all ranks start
again in the same allocation; if a host does not answer any more, the job is queued again. Exit codes: 0 done, canceled
or superseded; 75 queue again; 2 a user's mistake; 1 failed for good.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType

from model.common.errors import UserError
from model.config.pretraining import PretrainRun
from tasks.cluster import gang_link
from tasks.cluster.gang import GIVEN_UP, NODE_LOST, lead
from tasks.cluster.gang_link import GangLink
from tasks.cluster.node_supervisor import DONE, FAILED, RESUMABLE, USER_ERROR


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
    if restarts := int(os.environ.get("SLURM_RESTART_COUNT", "0")):
        nodes = os.environ["SLURM_JOB_NODELIST"]
        print(f"Slurm started the job again on {nodes} (restart {restarts})", flush=True)
    code = FAILED
    try:
        while code == FAILED and not canceled:
            code = lead(path, submitted, "slurm", os.environ["SLURM_JOB_ID"], lambda run: _run_ranks(run, path))
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    if canceled:
        return DONE
    # Slurm chooses nodes that answer when the job is queued again.
    return {NODE_LOST: RESUMABLE, GIVEN_UP: FAILED}.get(code, code)


def _run_ranks(run: PretrainRun, path: Path) -> str:
    """Run one supervisor per node until all have ended; if one fails, Slurm stops the others.

    Returns:
        The address of a host that does not answer any more, whose supervisor may still run; empty if all have ended.
    """
    nodes = _scontrol("show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()
    found = re.search(r"NodeAddr=(\S+)", _scontrol("show", "node", nodes[0]))  # names need not be those of hosts
    address = found[1] if found else nodes[0]
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    link = GangLink()
    count = len(nodes)
    command = ["srun", "--kill-on-bad-exit=1", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):
        command.append(f"--cpus-per-task={cpus}")  # srun does not take it from the job since Slurm 22.05
    command += [sys.executable, "-P", "-m", "tasks.cluster.node_supervisor", str(path)]
    environment = {
        **os.environ,
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        gang_link.VARIABLE: f"{address}:{link.port}",
        "PYTHONSAFEPATH": "1",
    }
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    while process.poll() is None and not link.lost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    return link.lost


def _scontrol(*words: str) -> str:
    return subprocess.run(["scontrol", *words], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
