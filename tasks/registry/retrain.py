"""What retraining does beside the pipeline: whether there is anything to judge, the branch, and the push."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from model.common.config_base import Settings
from model.common.errors import UserError
from model.common.files import digest_of, write_json
from model.common.redaction import redacted
from tasks.dvc.dvc_digests import outputs
from tasks.dvc.integrity import refuse_damaged
from tasks.project.project import Project
from tasks.project.workspace import read_record, timestamp
from tasks.project.yaml_files import read_yaml

RECORDED = ("dvc.lock", "data.dvc", "params.yaml")


class RetrainSettings(Settings):
    """Training again, on a schedule or on demand."""

    cron: str = "0 3 * * 0"
    """When, as five fields of cron: Sunday at three; `never` for on demand only."""
    timezone: str = "UTC"
    """Of these times, like Europe/Berlin."""
    fetch: bool = True
    """Look for what is new in fetch.sources first."""
    accept_data: bool = True
    """Pin data/ as it is, when it differs from data.dvc."""
    push: bool = True
    """`dvc push` what was made to the default remote."""
    branch: str = Field(default="retrain", pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]*$")
    """What the branches with dvc.lock begin with: retrain/2026-01-25-3f29c1."""


def lock_digest(project: Project) -> str:
    """The digest of dvc.lock as it is; of nothing before the first run."""
    path = project.root / "dvc.lock"
    return digest_of(read_yaml(path) if path.exists() else {})


def last_judged(project: Project) -> dict[str, Any]:
    """The record of the last retraining that came to a verdict; empty before the first."""
    return read_record(_record_path(project))


def remember(project: Project, record: dict[str, Any]) -> None:
    """Keep what this retraining came to, so that the next one judges only what is new."""
    write_json(_record_path(project), record | {"lock": lock_digest(project), "written": timestamp()})


def commit_on_branch(project: Project, settings: RetrainSettings, message: str) -> str:
    """Commit dvc.lock, data.dvc and params.yaml on a branch of their own; its name.

    The checkout, the index and the current branch stay as they are. The same state twice is one branch.

    Raises:
        UserError: git refuses.
    """
    branch = f"{settings.branch}/{time.strftime('%Y-%m-%d')}-{lock_digest(project)[:6]}"
    files = [name for name in RECORDED if (project.root / name).exists()]
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git(project, "read-tree", "HEAD", extra=index)
        _git(project, "add", "--force", "--", *files, extra=index)
        tree = _git(project, "write-tree", extra=index)
    if tree == _git(project, "rev-parse", "HEAD^{tree}"):
        return ""
    author = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _author(project)}
    commit = _git(project, "commit-tree", tree, "-p", "HEAD", "-m", message, extra=author)
    _git(project, "update-ref", f"refs/heads/{branch}", commit)
    return branch


def push(project: Project) -> str:
    """`dvc push` to the default remote; what there is to say about it.

    Raises:
        UserError: a cached object is damaged (DVC would leave it out without a word), DVC refuses, or the remote does
            not answer.
    """
    from dvc.config import Config

    if not Config(dvc_dir=str(project.root / ".dvc"), validate=False).get("core", {}).get("remote"):
        return "not pushed: DVC has no default remote (`dvc remote default NAME`)"
    refuse_damaged(project, outputs(project))
    command = [sys.executable, "-m", "dvc", "push", "--quiet"]
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"dvc push: {redacted(' '.join(done.stderr.split()))[-500:]}")
    return "pushed to DVC's remote"


def profiles_dir(project: Project) -> Path:
    """Where the profile of the corpus lies that was judged last, with its tokenizer."""
    return project.home / ".cloze" / "retrain"


def _record_path(project: Project) -> Path:
    return project.home / ".cloze" / "retrain.json"


def _author(project: Project) -> Sequence[tuple[str, str]]:
    """Who commits: git's user, or Cloze where none is set (a container)."""
    done = subprocess.run(
        ["git", "config", "user.email"], cwd=project.root, capture_output=True, text=True, check=False
    )
    return () if done.stdout.strip() else (("NAME", "cloze"), ("EMAIL", "cloze@localhost"))


def _git(project: Project, *arguments: str, extra: dict[str, str] | None = None) -> str:
    environment = {**os.environ, **(extra or {})}
    done = subprocess.run(
        ["git", *arguments], cwd=project.root, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"git {arguments[0]}: {' '.join(done.stderr.split())}")
    return done.stdout.strip()
