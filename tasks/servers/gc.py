"""`cloze gc`: delete files that are no longer used."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from model.common.errors import UserError
from model.common.files import read_json
from model.common.run_dir import RunDir
from tasks.project.environment import numba_cache
from tasks.project.progress import echo
from tasks.project.project import Project
from tasks.project.workspace import folder_bytes, run_lock


def collect(project: Project, everything: bool, dry_run: bool) -> None:
    """Delete checkpoints and models of published jobs, outdated compiled code, and unused objects of the DVC cache.

    Args:
        everything: also delete unfinished jobs with their checkpoints, workspaces, downloads and cleaned corpus units.
        dry_run: only print what would be deleted.
    """
    with run_lock(project, "cloze gc"):
        unused = [path for path in _leftovers(project, everything) if path.exists()]
        freed = sum(folder_bytes(path) for path in unused)
        for path in unused:
            echo(f"{'would delete' if dry_run else 'deleting'} {project.relative(path)}")
            if not dry_run:
                shutil.rmtree(path)
        if not dry_run:
            subprocess.run(["git", "worktree", "prune"], cwd=project.root, capture_output=True, check=False)
            _collect_cache(project)
        echo(f"{freed / 2**20:,.1f} MiB {'would be ' if dry_run else ''}freed in build/ and .cloze/")


def _leftovers(project: Project, everything: bool) -> list[Path]:
    found = list((project.runs / "staging").glob("*"))
    current = numba_cache(project)
    found += [folder for folder in current.parent.glob("*") if folder != current]
    for stage in ("pretrain", "finetune"):
        for folder in (project.runs / stage).glob("*"):
            job = RunDir(folder)
            if job.result.exists() and _is_published(project, stage, job):
                found += job.artifacts()
            elif everything and folder.is_dir():
                found.append(folder)
    if everything:
        found += [project.runs / "corpus" / "units", *project.workspaces.glob("*")]
        found += [path for path in (project.runs / "fetch").glob("*") if path.is_dir()]
    return found


def _is_published(project: Project, stage: str, job: RunDir) -> bool:
    digest = read_json(job.result)["digest"]
    if stage == "pretrain":
        published = [RunDir(path).metrics for path in (project.build / stage).glob("*")]
        return any(path.exists() and read_json(path)["digest"] == digest for path in published)
    return any((project.build / stage).glob(f"*/*/jobs/{digest}"))


def _collect_cache(project: Project) -> None:
    """`dvc gc`, keeping objects that the working tree or any commit refers to."""
    from dvc.repo import Repo

    try:
        with Repo(str(project.root)) as repo:
            repo.gc(workspace=True, all_commits=True, all_branches=True, force=True)
    except Exception as error:
        raise UserError(f"dvc gc: {' '.join(str(error).split())}") from error
