"""The branch of a retraining leaves the checkout alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tasks.params.root import RetrainSettings
from tasks.project.project import Project
from tasks.registry.retrain import commit_on_branch, last_judged, lock_digest, remember


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A git repository with a lock file, and an edit that is not committed."""
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "config", "user.email", "t@example.org")
    _git(tmp_path, "config", "user.name", "t")
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\n")
    (tmp_path / "notes.txt").write_text("one\n")
    _git(tmp_path, "add", "-A")
    _git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "notes.txt").write_text("two\n")
    return Project(tmp_path, tmp_path)


def test_the_lock_file_alone_is_committed(project: Project) -> None:
    (project.root / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    before = _git(project.root, "status", "--porcelain"), _git(project.root, "rev-parse", "HEAD")
    branch = commit_on_branch(project, RetrainSettings(), "Retraining: promoted")
    assert branch.startswith("retrain/")
    assert _git(project.root, "show", f"{branch}:dvc.lock") == "schema: '2.0'\nstages: {}"
    assert _git(project.root, "show", f"{branch}:notes.txt") == "one"
    assert _git(project.root, "log", "-1", "--format=%s", branch) == "Retraining: promoted"
    assert (_git(project.root, "status", "--porcelain"), _git(project.root, "rev-parse", "HEAD")) == before


def test_nothing_new_makes_no_branch(project: Project) -> None:
    assert commit_on_branch(project, RetrainSettings(), "again") == ""
    assert _git(project.root, "branch", "--list", "retrain/*") == ""


def test_a_verdict_is_for_one_state(project: Project) -> None:
    assert last_judged(project) == {}
    remember(project, {"reason": "promoted"})
    assert last_judged(project)["lock"] == lock_digest(project)
    (project.root / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    assert last_judged(project)["lock"] != lock_digest(project)
