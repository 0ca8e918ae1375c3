"""`cloze gc` and `cloze doctor` on a project that is not built."""

from __future__ import annotations

import os
import subprocess
import time
from hashlib import md5
from pathlib import Path

import pytest

from flows.cli import maintenance_commands
from model.common.files import write_json
from tasks.project.project import Project
from tasks.project.workspace import run_lock

DAY = 86_400


def finished_workspace(project: Project, name: str, num_days: float, recorded: bool = True) -> Path:
    folder = project.workspaces / name
    board = folder / "build" / "leaderboard" / "leaderboard.json"
    write_json(board, {})
    os.utime(board, (time.time() - num_days * DAY,) * 2)
    if recorded:
        write_json(project.leaderboards / name / "record.json", {"workspace": f".cloze/workspaces/{name}"})
    return folder


def test_old_finished_workspaces_are_unused(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path)
    old, _, _ = (
        finished_workspace(project, "old", 31),
        finished_workspace(project, "new", 29),
        finished_workspace(project, "unrecorded", 31, recorded=False),
    )
    running = finished_workspace(project, "running", 31)
    (project.workspaces / "unfinished").mkdir()
    assert sorted(maintenance_commands._old_workspaces(project, 30)) == [old, running]
    with run_lock(Project(running, tmp_path), "cloze run"):
        os.environ.pop("CLOZE_RUN_LOCK")  # as another process sees it
        assert list(maintenance_commands._old_workspaces(project, 30)) == [old]
        os.environ["CLOZE_RUN_LOCK"] = str(running)
    with run_lock(project, "cloze gc"):
        assert sorted(maintenance_commands._old_workspaces(project, 30)) == [old, running]
        assert os.environ["CLOZE_RUN_LOCK"] == str(project.root), "as before the workspaces were locked"
    assert "CLOZE_RUN_LOCK" not in os.environ


def test_versions_without_a_commit_are_counted_and_deleted(tmp_path: Path) -> None:
    from dvc.repo import Repo

    project, text = Project(tmp_path, tmp_path), tmp_path / "text"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    with Repo.init(str(tmp_path)) as repo:
        for content in ("committed", "committed later", "nobody's", "the directory's"):
            text.write_text(content)
            repo.add([str(text)])
            if content.startswith("committed"):
                subprocess.run([*git, "add", "-A"], check=True)
                subprocess.run([*git, "commit", "-qm", content], check=True)
                subprocess.run([*git, "commit", "-qm", "of other files", "--allow-empty"], check=True)
    entry = {"cmd": "cloze corpus", "outs": [{"path": "text", "md5": md5(b"nobody's").hexdigest()}]}
    write_json(tmp_path / ".dvc" / "cache" / "runs" / "ab" / "abc" / "def", entry)  # JSON is YAML
    unused = (len("nobody's"), "corpus (1)")
    assert maintenance_commands._collect_cache(project, dry_run=True) == unused
    assert maintenance_commands._collect_cache(project, dry_run=False) == unused
    assert maintenance_commands._collect_cache(project, dry_run=True) == (0, "")
    objects = [path for path in (tmp_path / ".dvc/cache/files/md5").rglob("*") if path.is_file()]
    assert {path.read_text() for path in objects} == {"committed", "committed later", "the directory's"}


def test_ports_of_our_own_servers_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"prefect": "http://127.0.0.1:4200"}
    monkeypatch.setattr(maintenance_commands, "running_address", lambda _, name: addresses.get(name, ""))
    prefect, *_ = maintenance_commands._ports(Project(tmp_path, tmp_path))
    assert prefect.fine and prefect.found == "Prefect of `cloze up`"
