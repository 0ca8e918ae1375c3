"""Owners of a run directory: one attempt at a job may write to it at a time.

Each attempt creates the next of owner-1.json, owner-2.json, ... exclusively; the highest number owns the directory. A
process of an earlier attempt, such as one on a node that comes back, finds the next file and stops.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from pathlib import Path
from typing import NamedTuple

from model.common.files import sync
from model.common.state_files import read_state, write_state

_NAME = re.compile(r"owner-(\d+)\.json")


class Superseded(Exception):
    """A later attempt owns the run directory; this process may write nothing more."""


class Owner(NamedTuple):
    """One attempt at a job."""

    attempt: int
    launcher: str
    """local, slurm, or pool (a node of a Dask cluster)."""
    id: str
    """Process id on `host`, the job's id at the launcher, or the name of the node; empty until it is known."""
    host: str


def newest_owner(run_dir: Path) -> Owner | None:
    """Return the present owner of a run directory, if it ever had one; of a damaged file, only the attempt."""
    attempts = [int(found[1]) for path in run_dir.glob("owner-*.json") if (found := _NAME.fullmatch(path.name))]
    if not attempts:
        return None
    content = {"launcher": "", "id": "", "host": "", **read_state(_path(run_dir, max(attempts)), may_move=False)}
    return Owner(max(attempts), content["launcher"], content["id"], content["host"])


def claim(run_dir: Path, after: int, launcher: str, job_id: str) -> Owner | None:
    """Own the run directory as attempt `after` + 1; None if somebody else has claimed that attempt first."""
    owner = Owner(after + 1, launcher, job_id, socket.gethostname())
    run_dir.mkdir(parents=True, exist_ok=True)
    draft = run_dir / f".owner.{uuid.uuid4().hex}"
    write_state(draft, owner._asdict())
    try:
        os.link(draft, _path(run_dir, owner.attempt))  # atomic and exclusive, on NFS too
        sync(run_dir)
    except FileExistsError:
        return None
    finally:
        draft.unlink()
    return owner


def require_ownership(run_dir: Path, attempt: int) -> None:
    """Check that `attempt` still owns the run directory. Attempt 0 claims nothing and is not checked.

    Raises:
        Superseded: a later attempt does.
    """
    if attempt and _path(run_dir, attempt + 1).exists():
        raise Superseded(f"{run_dir}: attempt {attempt + 1} owns it; attempt {attempt} stops")


def _path(run_dir: Path, attempt: int) -> Path:
    return run_dir / f"owner-{attempt}.json"
