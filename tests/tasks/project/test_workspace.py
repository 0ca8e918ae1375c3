from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.project.project import Project
from tasks.project.workspace import (
    Busy,
    checked_name,
    commit_page,
    find_workspaces,
    follow,
    is_locked,
    name_of,
    publish,
    reconnect,
    require_space,
    run_label,
    run_lock,
    staging,
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, tmp_path)


def locking(project: Project, name: str, block: str) -> list[str]:
    """A command that holds the lock while it executes `block`."""
    program = (
        "import sys, time; from pathlib import Path\n"
        "from tasks.project.project import Project; from tasks.project.workspace import run_lock\n"
        "p = Path(sys.argv[1])\n"
        f"with run_lock(Project(p, p), {name!r}): {block}\n"
    )
    return [sys.executable, "-c", program, str(project.root)]


def test_a_second_run_in_a_folder_is_told_of_the_first(project: Project) -> None:
    command = locking(project, "second", "pass")
    environment = {"PATH": "/usr/bin:/bin"}
    with run_lock(project, "first"):
        second = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert second.returncode != 0
        assert "another run uses this directory (first, process" in second.stderr
        with run_lock(project, "a stage of the same run"):
            pass
    assert subprocess.run(command, capture_output=True, env=environment, check=False).returncode == 0


def test_the_lock_holds_although_its_file_is_deleted(project: Project) -> None:
    with run_lock(project, "first"):
        project.lock_path.unlink()
        second = subprocess.run(locking(project, "second", "pass"), capture_output=True, text=True, env={}, check=False)
    assert "another run uses this directory" in second.stderr


def test_a_command_can_wait_for_a_run_that_ends_soon(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    command = locking(project, "first", "print('locked', flush=True); time.sleep(2)")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "locked\n"
        with pytest.raises(Busy), run_lock(project, "second"):
            pass
        with run_lock(project, "second", wait_seconds=60.0):
            assert first.wait(5) == 0
    assert "(first, process" in (said := capsys.readouterr().err) and "waiting up to 60 s" in said


def test_publishing_replaces_a_folder_whole(project: Project) -> None:
    target = project.build / "stage"
    for content in ("old", "new"):
        with staging(project, "stage") as folder:
            (folder / content).write_text(content)
            publish(folder, target)
    assert [path.name for path in target.iterdir()] == ["new"]
    assert not any((project.runs / "staging").iterdir())


def test_a_directory_is_told_from_a_new_one_of_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with follow(folder) as is_at:
        assert is_at(folder) and not is_at(tmp_path)
        folder.rename(tmp_path / "moved")
        assert not is_at(folder) and is_at(tmp_path / "moved")
        shutil.rmtree(tmp_path / "moved")
        for _ in range(100):  # file systems soon use inodes again
            folder.mkdir()
            assert not is_at(folder)
            folder.rmdir()


def test_a_failed_stage_leaves_the_old_output(project: Project) -> None:
    target = project.build / "stage"
    with staging(project, "stage") as folder:
        (folder / "old").touch()
        publish(folder, target)
    with pytest.raises(ZeroDivisionError), staging(project, "stage") as folder:
        (folder / "half").touch()
        raise ZeroDivisionError
    assert [path.name for path in target.iterdir()] == ["old"]
    assert not any((project.runs / "staging").iterdir())


def test_publishing_without_exchange(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.project.workspace._exchange", lambda one, other: False)
    test_publishing_replaces_a_folder_whole(project)


def test_a_step_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the corpus needs about .* MiB"):
        require_space(tmp_path / "not" / "there", 2**60, "the corpus")
    require_space(tmp_path, 1, "the corpus")


def test_a_run_has_one_label(project: Project) -> None:
    key = "0123456789abcdef"
    assert run_label(key) == "pipeline-01234567" and run_label(key, "two-seeds") == "two-seeds-01234567"
    for label in ("two-seeds-01234567", "two-89abcdef", "two-seeds-fedcba98"):
        (project.workspaces / label).mkdir(parents=True)
    os.utime(project.workspaces / "two-seeds-01234567", (1, 1))

    def found(what: str) -> list[str]:
        return [path.name for path in find_workspaces(project, what)]

    assert found("two-seeds") == ["two-seeds-fedcba98", "two-seeds-01234567"], "newest first"
    assert found("two") == found("89abcdef") == found("two-89abcdef") == ["two-89abcdef"]
    assert found("seeds") == []


@pytest.mark.parametrize(
    ("file", "name"),
    [("params/sample-seeds.yaml", "sample-seeds"), ("BERT Base.yaml", "bert-base"), ("_.yaml", "params")],
)
def test_a_parameter_file_names_its_run(file: str, name: str) -> None:
    assert name_of(Path(file)) == checked_name(name) == name


def test_whether_a_run_is_active(project: Project) -> None:
    assert not is_locked(project)
    with run_lock(project, "cloze run"):
        assert is_locked(project)
    assert not is_locked(project)


def test_a_copied_project_has_workspaces_of_its_own(tmp_path: Path) -> None:
    def git(folder: Path, *command: str) -> str:
        named = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run([*named, *command], cwd=folder, capture_output=True, text=True, check=True).stdout

    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    git(before, "init", "-q")
    git(before, "commit", "-q", "--allow-empty", "-m", "first")
    git(before, "worktree", "add", "-q", "--detach", str(before / ".cloze" / "workspaces" / "wide-01234567"))
    shutil.copytree(before, after)
    files = {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}

    reconnect(Project(after, after))
    workspace = after / ".cloze" / "workspaces" / "wide-01234567"
    assert git(workspace, "rev-parse", "--path-format=absolute", "--git-common-dir").strip() == str(after / ".git")
    git(workspace, "commit", "-q", "--allow-empty", "-m", "second")
    git(after, "worktree", "prune")
    assert str(workspace) in git(after, "worktree", "list")
    assert {path: path.read_bytes() for path in before.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("https://ann:s3cret@git.example.org/team/encoder.git", "https://git.example.org/team/encoder"),
        ("git@git.example.org:team/encoder.git", "https://git.example.org/team/encoder"),
        ("ssh://git@git.example.org:2222/team/encoder", "https://git.example.org/team/encoder"),
        ("/srv/git/encoder.git", ""),
        ("../encoder", ""),
    ],
)
def test_the_page_of_a_commit(project: Project, remote: str, page: str) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=project.root, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert commit_page(project) == "", "no repository"
    git("init", "-q")
    git("remote", "add", "origin", remote)
    assert commit_page(project) == "", "no commit"
    git("commit", "-q", "--allow-empty", "-m", "state")
    assert commit_page(project) == (page and f"{page}/commit/{git('rev-parse', 'HEAD')}")
