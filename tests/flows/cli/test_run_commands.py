"""`cloze pretrain --write-jobs`, and the last lines of a run, which say how to open its pages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.cli import run_commands
from flows.cli.run_commands import show_outcome
from model.common.errors import UserError
from model.common.files import write_bytes, write_json
from model.config.pretraining import PretrainRun, read_run
from tasks.leaderboard import history
from tasks.leaderboard.board import compose
from tasks.leaderboard.inputs import Inputs
from tasks.params.root import PretrainParams, load_params
from tasks.project.project import Project


@pytest.fixture
def project(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("params.yaml", "dvc.yaml", "versions.yaml"):
        shutil.copy(root / name, tmp_path / name)
    made = Project(tmp_path, tmp_path)
    monkeypatch.setattr(run_commands, "project_here", lambda: made)
    return made


def test_without_tokens_it_says_what_to_do(project: Project) -> None:
    with pytest.raises(UserError, match="run the tokens stage first"):
        run_commands.pretrain.callback(write_jobs=True)


def test_every_encoder_without_a_result_gets_its_file(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(
        params: PretrainParams, tokens: Path, tokenizer: Path, data: Path, runs: Path, *_: object
    ) -> list[PretrainRun]:
        given: dict[str, Any] = {"tokens_dir": tokens, "tokenizer_dir": tokenizer, "data_dir": data}
        return [
            PretrainRun(
                name=one.name,
                digest=f"{number:016d}",
                run_dir=runs / one.name,
                shape=one.shape,
                recipe=params.recipe_of(one),
                machine=params.machine,
                **given,
            )
            for number, one in enumerate(params.encoders)
        ]

    monkeypatch.setattr("tasks.pretrain.pretrain.plan_encoders", plan)
    names = [one.name for one in load_params(project.params_path).pretrain.encoders]
    run_commands.pretrain.callback(write_jobs=True)
    written = [f"build/runs/pretrain/{name}/RUN.json" for name in names]
    assert capsys.readouterr().out.splitlines() == written
    assert [read_run(project.root / path).name for path in written] == names
    done = (project.root / written[0]).parent
    write_json(done / "result.json", {"digest": f"{0:016d}"})
    (done / "encoder").mkdir()
    run_commands.pretrain.callback(write_jobs=True)
    assert capsys.readouterr().out.splitlines() == written[1:]


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
