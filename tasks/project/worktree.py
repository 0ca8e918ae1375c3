"""Workspace of a run with other parameters: a git worktree that shares the DVC cache, as in `dvc exp run --temp`.

Its name is derived from the parameter file, so the same command resumes an interrupted run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from model.common.errors import UserError
from model.common.files import digest_of
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml

LOCK = "dvc.lock"
# Files that may differ from the checked-out commit
_COPIED = ("dvc.yaml", "data.dvc", ".dvc/config", ".dvc/config.local", ".dvcignore", "tasks/versions.py")


def prepare(project: Project, params_path: Path) -> Path:
    """Create or update the workspace for `params_path` and return its path.

    Raises:
        UserError: the project is not a git clone with a commit, or git or DVC fails.
    """
    content = read_yaml(params_path)
    workspace = project.workspaces / f"{params_path.stem}-{digest_of(content)[:8]}"
    if not (workspace / ".git").exists():
        shutil.rmtree(workspace, ignore_errors=True)
        workspace.parent.mkdir(parents=True, exist_ok=True)
        _run(project.root, "git", "worktree", "prune")
        _run(project.root, "git", "worktree", "add", "--detach", "--force", str(workspace), "HEAD")
        if (project.root / LOCK).exists():  # so that finished stages come from the cache
            shutil.copyfile(project.root / LOCK, workspace / LOCK)
    for name in _COPIED:
        source, target = project.root / name, workspace / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    shutil.copyfile(params_path, workspace / "params.yaml")
    _share_cache(project, workspace)
    return workspace


def _share_cache(project: Project, workspace: Path) -> None:
    """Let DVC in the workspace use the project's cache, and check out its data."""
    from dvc.config import Config

    local = Config(dvc_dir=str(project.root / ".dvc"), validate=False)
    cache = local.get("cache", {}).get("dir") or str(project.root / ".dvc" / "cache")
    with Config(dvc_dir=str(workspace / ".dvc"), validate=False).edit("local") as settings:
        settings.setdefault("cache", {})["dir"] = str(cache)
        # relative URLs of remotes are relative to the project's configuration
        settings["remote"] = {
            name: {"url": str((project.root / ".dvc" / remote["url"]).resolve())}
            for name, remote in local.get("remote", {}).items()
            if "://" not in remote["url"] and not Path(remote["url"]).is_absolute()
        }
    from dvc.repo import Repo

    with Repo(str(project.root)) as repo:
        try:
            repo.commit("data.dvc", force=False)  # so that the cache has the pinned data
        except Exception as error:
            raise UserError(f"data.dvc: {' '.join(str(error).split())}") from error
    checkout = [sys.executable, "-m", "dvc", "checkout", "--quiet", "data.dvc"]
    done = subprocess.run(checkout, cwd=workspace, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"the workspace's data: {' '.join(done.stderr.split())}")


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(command[:3])}: {' '.join(done.stderr.split())}; is this a git clone with a commit?")
