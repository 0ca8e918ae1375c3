"""`python -P -m tasks.jobs.node_supervisor RUN.json`: one node's part of a pre-training job on a cluster.

The supervisor that Slurm and Kubernetes start on every node. It runs the job's ranks of this node (under torchrun where
there are several), hands a request to stop on to the ranks, and turns what the job's files say into an exit code that
batch systems understand: 0 done, 75 to be continued, 2 the user's mistake, 1 anything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from model.common import process_guard
from model.common.errors import UserError
from model.common.run_dir import RunDir
from model.config.pretrain_run import PretrainRun, read_run
from tasks.project.environment import training_environment

DONE, FAILED, MISTAKE, CONTINUE = 0, 1, 2, 75
PORT = 29500  # where ranks meet unless MASTER_PORT says otherwise; torchrun's own default
PATIENCE_SECONDS = 60.0  # the first node may still be writing status.json when another one's ranks have ended
_RANKS = ("NODE_RANK", "JOB_COMPLETION_INDEX", "SLURM_NODEID")  # said by hand, by Kubernetes, by Slurm


def node_command(run: PretrainRun, run_path: Path, environment: Mapping[str, str]) -> list[str]:
    """The command of this node's ranks; RUN.json says how many nodes and ranks, `environment` which node this is.

    Raises:
        UserError: the job has several nodes, and the environment does not say which one this is or where they meet.
    """
    python = [sys.executable, "-P", "-m"]
    module = ["model.pretrain", str(run_path)]
    machine = run.machine
    if machine.world_size == 1:
        return [*python, *module]
    torchrun = [*python, "torch.distributed.run", f"--nproc-per-node={machine.num_devices}", "--max-restarts=0"]
    torchrun.append("--signals-to-handle=SIGHUP")  # not SIGTERM: it would kill ranks that save for more than 30 s
    if machine.num_nodes == 1:
        return [*torchrun, "--standalone", "-m", *module]
    rank = next((environment[name] for name in _RANKS if environment.get(name)), None)
    address = environment.get("MASTER_ADDR")
    if rank is None or not address:
        raise UserError(
            f"{run_path}: a job of {machine.num_nodes} nodes; set MASTER_ADDR to the first one's name and NODE_RANK to "
            f"this one's number (Slurm and Kubernetes give a number themselves)"
        )
    if not rank.isdigit() or int(rank) >= machine.num_nodes:
        raise UserError(f"{run_path}: a job of {machine.num_nodes} nodes has no node {rank}; count from 0")
    port = environment.get("MASTER_PORT") or str(PORT)
    where = [
        f"--nnodes={machine.num_nodes}",
        f"--node-rank={rank}",
        f"--master-addr={address}",
        f"--master-port={port}",
    ]
    return [*torchrun, *where, "-m", *module]


def exit_code_of(run: PretrainRun, patience_seconds: float) -> int:
    """What the job's files say; a process's own exit code says nothing (torchrun turns all into 1)."""
    run_dir, deadline = RunDir(run.run_dir), time.monotonic() + patience_seconds
    while True:
        if run_dir.read_result(run.digest) is not None:
            return DONE
        status = run_dir.read_status()
        if status.get("state") == "to be continued":
            return CONTINUE
        if status.get("state") == "failed":
            return MISTAKE if status.get("fault") == "user" else FAILED
        if time.monotonic() >= deadline:  # nobody wrote how it ended: killed
            return FAILED
        time.sleep(0.2)


class Node:
    """The process of this node's ranks."""

    def __init__(self, command: Sequence[str], under_torchrun: bool) -> None:
        self._under_torchrun = under_torchrun
        self.process = subprocess.Popen(command, env=training_environment(), preexec_fn=_follow)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        """Ask the ranks, not torchrun, to save and end."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            for rank in process.children() if self._under_torchrun else [process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    rank.terminate()


def _follow() -> None:
    """In the child: die with this process; torchrun, where there is one, leaves SIGTERM to its ranks."""
    process_guard.die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ranks set handlers of their own


def main(arguments: list[str]) -> int:
    """Run this node's part of the job that `arguments` name; the exit code."""
    if len(arguments) != 1:
        print("usage: python -P -m tasks.jobs.node_supervisor RUN.json", file=sys.stderr)
        return MISTAKE
    path = Path(arguments[0])
    try:
        run = read_run(path)
        run_dir = RunDir(run.run_dir)
        if run_dir.read_result(run.digest) is not None:
            return DONE
        command = node_command(run, path, os.environ)
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return MISTAKE
    before = run_dir.read_status().get("time")
    ended = Node(command, under_torchrun=run.machine.world_size > 1).process.wait()
    if run_dir.read_status().get("time") == before:  # it ended before it could say anything
        return MISTAKE if ended == MISTAKE else FAILED
    return exit_code_of(run, PATIENCE_SECONDS if run.machine.num_nodes > 1 else 0.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
