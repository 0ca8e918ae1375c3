"""One attempt of a cluster job whose ranks work on several nodes: who owns it, and what a lost rank means.

The process on the first node leads the others. When a rank, a node or a connection is lost, all ranks start again from
the newest checkpoint, because none can continue without the others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model.common.files import write_json
from model.common.ownership import Owner, claim, newest_owner
from model.common.run_dir import RunDir
from model.common.state_files import read_state, write_state
from model.config.pretraining import PretrainRun, read_run
from tasks.cluster.node_supervisor import DONE, FAILED, RESUMABLE, exit_code_of
from tasks.jobs.local_launcher import last_line
from tasks.jobs.supervision import FAULTS

GIVEN_UP, NODE_LOST = 3, 4
"""Exit codes of a job that must not start again, and of one that needs other nodes."""
_MOST_LOSSES = 3  # without a new checkpoint in between


def lead(path: Path, submitted: int, launcher: str, job_id: str, run_ranks: Callable[[PretrainRun], str]) -> int:
    """Run the ranks of a job once, as the owner of its run directory, and return the exit code.

    Args:
        path: RUN.json of the job.
        submitted: attempt as which the job was submitted. Later attempts with the same `job_id` continue it.
        run_ranks: runs all ranks, and returns when they have ended, or with the address of a host that does not answer.

    Returns:
        DONE (also if another job owns the directory), RESUMABLE, USER_ERROR or GIVEN_UP; FAILED or NODE_LOST if all
        ranks have to start again.

    Raises:
        UserError: RUN.json is invalid.
    """
    run = read_run(path)
    run_dir = RunDir(run.run_dir)
    owner = _own(run_dir, submitted, launcher, job_id)
    if owner is None or run_dir.read_result(run.digest) is not None:
        return DONE
    num_losses, reason = _count_start(run_dir, job_id)
    if num_losses == _MOST_LOSSES:
        message = f"ended {num_losses} times without a new checkpoint: {reason}"
        write_state(run_dir.status, {"state": "failed", "fault": "restarts", "message": message})
        return GIVEN_UP
    write_json(path, run.model_copy(update={"attempt": owner.attempt}).model_dump(mode="json"))
    run_dir.status.unlink(missing_ok=True)
    lost_host = run_ranks(run)
    code = exit_code_of(run)  # rank 0 runs on this node, so its files are current here
    if newest_owner(run_dir.path) != owner:
        return DONE
    if code == RESUMABLE:
        run_dir.starts.unlink()
    if code != FAILED:
        return code
    status = run_dir.read_status()
    fault = status.get("fault") or "lost"
    if fault in FAULTS and not FAULTS[fault].retries:
        return GIVEN_UP
    _note_loss(run_dir, f"{lost_host} does not answer" if lost_host else last_line(run_dir.log))
    if lost_host or not status:  # or no rank has started
        print(f"{lost_host or 'a node'} does not answer; the job is queued again", flush=True)
        return NODE_LOST
    print(f"a rank was lost after step {run_dir.saved_step():,}; starting all ranks again", flush=True)
    return FAILED


def _own(run_dir: RunDir, submitted: int, launcher: str, job_id: str) -> Owner | None:
    """Own the run directory; None if another job does. A job that starts again follows its own earlier attempts."""
    before = newest_owner(run_dir.path)
    attempt = before.attempt if before is not None else 0
    if before is not None and attempt != submitted and before.id != job_id:
        print(f"attempt {attempt} owns {run_dir.path}; this job ends", flush=True)
        return None
    return claim(run_dir.path, attempt, launcher, job_id)


def _count_start(run_dir: RunDir, job_id: str) -> tuple[int, str]:
    """Count a start of the ranks; return how many earlier ones of this job brought no checkpoint, and why.

    The process that counts may be lost with its node, so the count is in a file.
    """
    saved = run_dir.saved_step()
    before = read_state(run_dir.starts)
    if (before.get("job"), before.get("saved")) != (job_id, saved):
        before = {"starts": 0, "reason": ""}
    write_state(run_dir.starts, {**before, "job": job_id, "saved": saved, "starts": before["starts"] + 1})
    return before["starts"], before["reason"] or "the first node was lost"


def _note_loss(run_dir: RunDir, reason: str) -> None:
    write_state(run_dir.starts, {**read_state(run_dir.starts), "reason": reason})
