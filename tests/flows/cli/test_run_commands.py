"""The last lines of a run, which say how to open its pages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows.cli import run_commands
from flows.cli.run_commands import show_outcome
from model.common.files import write_bytes, write_json
from tasks.leaderboard import history
from tasks.leaderboard.board import compose
from tasks.leaderboard.inputs import Inputs
from tasks.project.project import Project


@pytest.fixture
def project(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("params.yaml", "dvc.yaml", "versions.yaml"):
        shutil.copy(root / name, tmp_path / name)
    made = Project(tmp_path, tmp_path)
    monkeypatch.setattr(run_commands, "project_here", lambda: made)
    return made


@pytest.mark.parametrize(
    ("tracking", "api", "shown"),
    [
        (None, None, ["servers"]),
        ("postgresql://me:secret@there/mlflow", None, ["servers"]),
        (
            "http://me:secret@there:5000",
            "https://me:secret@there/prefect/api",
            ["MLflow http://there:5000", "Prefect https://there/prefect"],
        ),
    ],
)
def test_pages(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tracking: str | None,
    api: str | None,
    shown: list[str],
) -> None:
    for name, value in (("MLFLOW_TRACKING_URI", tracking), ("PREFECT_API_URL", api)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    (project.root / "docs").mkdir()
    monkeypatch.chdir(project.root / "docs")  # as the user has; paths are relative to it
    monkeypatch.delenv("CLOZE_USER_DIR", raising=False)
    board = compose(Inputs(project.build), [], [])
    write_json(project.build / "leaderboard" / "leaderboard.json", board.content())
    monkeypatch.setattr("sys.argv", [str(project.root / ".venv" / "bin" / "cloze")])
    monkeypatch.setenv("PATH", str(project.root))
    show_outcome(project, 0.0, ran=[])
    assert "../.venv/bin/cloze board" in capsys.readouterr().err, "as it can be called if the environment is not active"
    write_bytes(project.root / "cloze", b"")
    (project.root / "cloze").chmod(0o755)
    show_outcome(project, 0.0, ran=[])
    lines = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines() if line.startswith("  ")]
    assert lines[:2] == ["page ../build/leaderboard/leaderboard.html", "all runs cloze board"]
    assert [line if "http" in line else line.split()[0] for line in lines[2:]] == shown
    assert ("cloze up" in lines[-1]) == (shown == ["servers"])
    page = project.leaderboards / history.record_digest(board) / "leaderboard.html"
    write_bytes(page, b"<html>")
    show_outcome(project, 0.0, ran=[])
    assert f"../.cloze/leaderboard/{page.parent.name}/leaderboard.html" in capsys.readouterr().err
