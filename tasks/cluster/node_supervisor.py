"""`python -P -m tasks.cluster.node_supervisor RUN.json`: run one node's ranks of a pre-training job on a cluster.

Slurm and Kubernetes start this supervisor on every node. It runs the node's ranks (under torchrun if there are
several), forwards stop signals to them, and derives an exit code for the batch system from the job's files: 0 done, 75
interrupted and resumable, 2 user error, 1 any other failure. The first node's supervisor speaks for the job, because
rank 0 writes these files there; the others say only whether their ranks ended well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from model.common import process_guard
from model.common.errors import UserError
from model.common.run_dir import RunDir
from model.config.pretraining import PretrainRun, read_run
from tasks.cluster import gang_link
from tasks.project.environment import training_environment

DONE, FAILED, USER_ERROR, RESUMABLE = 0, 1, 2, 75
_MOST_IDLE_ROUNDS = 60  # of half a second; torchrun starts the ranks, or ends after them, more quickly
PORT = 29500  # torchrun's default; MASTER_PORT overrides it
_RANKS = ("NODE_RANK", "JOB_COMPLETION_INDEX", "SLURM_NODEID")  # set by hand, by Kubernetes, by Slurm


def node_command(run: PretrainRun, run_path: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the command of this node's ranks. RUN.json has the number of nodes and ranks, `environment` the node's
    rank.

    Raises:
        UserError: the job has several nodes, and the environment lacks the node's rank or the address of the first
            node.
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
    rank = _node_rank(environment)
    address = environment.get("MASTER_ADDR")
    if rank is None or not address:
        raise UserError(
            f"{run_path}: the job runs on {machine.num_nodes} nodes; set MASTER_ADDR to the first node's name and "
            "NODE_RANK to this node's rank (Slurm and Kubernetes set the rank themselves)"
        )
    if not rank.isdigit() or int(rank) >= machine.num_nodes:
        raise UserError(f"{run_path}: node rank {rank} is not valid for {machine.num_nodes} nodes; ranks start at 0")
    port = environment.get("MASTER_PORT") or str(PORT)
    torchrun += [f"--nnodes={machine.num_nodes}", f"--node-rank={rank}"]
    torchrun += [f"--master-addr={address}", f"--master-port={port}"]
    return [*torchrun, "-m", *module]


def _node_rank(environment: Mapping[str, str]) -> str | None:
    return next((environment[name] for name in _RANKS if environment.get(name)), None)


def exit_code_of(run: PretrainRun) -> int:
    """Derive the exit code from the job's files (torchrun replaces the ranks' exit codes by 1)."""
    run_dir = RunDir(run.run_dir)
    if run_dir.read_result(run.digest) is not None:
        return DONE
    status = run_dir.read_status()
    if status.get("state") == "to be continued":
        return RESUMABLE
    return USER_ERROR if (status.get("state"), status.get("fault")) == ("failed", "user") else FAILED


def _run_ranks(command: Sequence[str], under_torchrun: bool, is_broken: threading.Event) -> int:
    """Run this node's ranks and return the exit code; a stop signal asks the ranks, not torchrun, to save and exit."""
    environment = training_environment({"PYTHONSAFEPATH": "1"})  # for ranks, which torchrun starts without -P
    process = subprocess.Popen(command, env=environment, preexec_fn=_follow)

    asked = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    num_idle = 0  # rounds in a row without a rank to ask
    while True:
        # More than once: torchrun may not have started the ranks yet, and a rank ignores it while it imports modules.
        if asked:
            num_idle = 0 if _terminate(process.pid, under_torchrun) else num_idle + 1
        if is_broken.is_set() or num_idle == _MOST_IDLE_ROUNDS:
            process.kill()  # ranks end with torchrun, which may be waiting for another node
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.5)


def _terminate(pid: int, under_torchrun: bool) -> bool:
    """Ask the ranks to end; return whether there is one."""
    import psutil

    ranks = []
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        ranks = parent.children() if under_torchrun else [parent]
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.terminate()
    return bool(ranks)


def _follow() -> None:
    """Runs in the child: end with this process, and leave SIGTERM to the ranks under torchrun."""
    process_guard.die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ranks install their own handlers


def main(arguments: list[str]) -> int:
    """Run this node's ranks of the job in the file `arguments[0]` and return the exit code."""
    if len(arguments) != 1:
        print("usage: python -P -m tasks.cluster.node_supervisor RUN.json", file=sys.stderr)
        return USER_ERROR
    path = Path(arguments[0])
    try:
        run, is_broken = read_run(path), threading.Event()
        if gang := os.environ.get(gang_link.VARIABLE):
            is_broken = gang_link.GangMember(gang).is_broken
        return run_node(run, path, is_broken)
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    except gang_link.NoLeader as error:
        print(error, file=sys.stderr)
        return FAILED


def run_node(run: PretrainRun, path: Path, is_broken: threading.Event) -> int:
    """Run this node's ranks of the job in the file `path`, and return the exit code.

    Args:
        is_broken: when set, because the job's leader or the link to it is gone, the ranks are killed.

    Raises:
        UserError: see `node_command`.
    """
    run_dir = RunDir(run.run_dir)
    if run_dir.read_result(run.digest) is not None:
        return DONE
    command = node_command(run, path, os.environ)
    before = run_dir.read_status().get("time")
    ended = _run_ranks(command, run.machine.world_size > 1, is_broken)
    if run.machine.num_nodes > 1 and _node_rank(os.environ) != "0":
        return FAILED if ended else DONE
    if run_dir.read_status().get("time") == before:  # it ended before it wrote a status
        return USER_ERROR if ended == USER_ERROR else FAILED
    return exit_code_of(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
