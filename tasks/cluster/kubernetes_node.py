"""`python -P -m tasks.cluster.kubernetes_node RUN.json ATTEMPT FOLDER`: one node's ranks of a job, in its pod.

The first pod leads: it owns the run directory, counts lost ranks, and sends the other pods the exit code. What a pod
prints is also appended to the log of the job. Exit codes: 0 done, 75 start the pod again, 2 a mistake of the user, 3
failed for good, 1 a rank was lost.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from model.common.errors import UserError
from model.common.run_dir import RunDir
from model.config.pretraining import PretrainRun, read_run
from tasks.cluster.gang import NODE_LOST, lead
from tasks.cluster.gang_link import GangLink, GangMember, NoLeader
from tasks.cluster.node_supervisor import DONE, FAILED, PORT, RESUMABLE, USER_ERROR, run_node
from tasks.project.environment import numba_cache
from tasks.project.project import Project
from tasks.project.stage_versions import check_versions

_LINK_PORT = PORT + 1
_PATIENCE_SECONDS = 900  # pods may start minutes apart: nodes have to be added, and images to be pulled


def main(arguments: list[str]) -> int:
    """Run this pod's ranks of the job in the file `arguments[0]`, submitted as attempt `arguments[1]`."""
    path, submitted, folder = Path(arguments[0]), int(arguments[1]), arguments[2]
    try:
        os.chdir(folder)
        project = Project.find()
        check_versions(project)  # the code is that of the image, but the job was planned by the project's
        # On the volume: compiling takes a minute, and a pod that starts again has lost its own files.
        os.environ["NUMBA_CACHE_DIR"] = str(numba_cache(project))
        first_node = os.environ["MASTER_ADDR"]
        if os.environ["JOB_COMPLETION_INDEX"] == "0":
            return _lead(path, submitted, first_node)
        member = GangMember(f"{first_node}:{_LINK_PORT}", _PATIENCE_SECONDS)
        code = run_node(read_run(path), path, member.is_broken)
        # Ranks that were asked to stop end as well as those of a finished job, but a pod that exits with 0 never starts
        # again.
        return member.wait_for_code(otherwise=FAILED) if code == DONE else code
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    except NoLeader as error:
        print(error, file=sys.stderr)
        return FAILED


def _lead(path: Path, submitted: int, first_node: str) -> int:
    link = GangLink(_LINK_PORT)

    def run_ranks(run: PretrainRun) -> str:
        run_node(run, path, link.is_broken)
        return link.lost

    _, _, name = first_node.partition(".")  # the service has the name of the job
    code = lead(path, submitted, "kubernetes", f"{name} {submitted}", run_ranks)
    code = FAILED if code == NODE_LOST else code  # Kubernetes replaces the pod on another node
    link.tell(code)
    return code


def _ran_out_of_memory() -> bool:
    """Check whether the kernel killed a process of this container for its memory limit (cgroups version 2 or 1)."""
    for name in ("memory.events", "memory/memory.oom_control"):
        path = Path("/sys/fs/cgroup", name)
        if path.exists() and re.search(r"^oom_kill [1-9]", path.read_text(), re.MULTILINE):
            return True
    return False


def _copy_output(log: Path) -> None:
    """Let this process and its children write to the job's log as well as to the pod's."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = ["tee", "--append", "--ignore-interrupts", str(log)]
    tee = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert tee.stdin is not None
    for descriptor in (1, 2):
        os.dup2(tee.stdin.fileno(), descriptor)
    tee.stdin.close()


if __name__ == "__main__":
    _copy_output(RunDir(Path(sys.argv[1]).parent).log)
    exit_code = main(sys.argv[1:])
    if exit_code not in (DONE, RESUMABLE) and _ran_out_of_memory():
        print(
            "the pod needs more memory than its limit, and the kernel killed a process: raise cluster.pretrain.memory"
        )
    sys.exit(exit_code)
