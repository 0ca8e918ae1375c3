"""The last lines of a run: the commands or the addresses that open its pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli.run_commands import show_outcome
from model.common.files import write_json
from tasks.dvc.stage_snapshot import Clock
from tasks.project.project import Project


@pytest.mark.parametrize(
    ("tracking", "api", "mlflow", "prefect"),
    [
        (
            None,
            None,
            "mlflow ui --backend-store-uri sqlite:///.cloze/mlflow/mlflow.db",
            "PREFECT_HOME=.cloze/prefect prefect server start",
        ),
        (
            "http://me:secret@there:5000",
            "https://me:secret@there/prefect/api",
            "http://there:5000",
            "https://there/prefect",
        ),
        (
            "postgresql://me:secret@there/mlflow",
            None,
            "mlflow ui --backend-store-uri postgresql://there/mlflow",
            "PREFECT_HOME=.cloze/prefect prefect server start",
        ),
    ],
)
def test_pages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tracking: str | None,
    api: str | None,
    mlflow: str,
    prefect: str,
) -> None:
    for name, value in (("MLFLOW_TRACKING_URI", tracking), ("PREFECT_API_URL", api)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, tmp_path)
    write_json(project.build / "leaderboard" / "leaderboard.json", {})
    show_outcome(project, Clock(), ran=[])
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().err.splitlines() if line.startswith("  ")]
    assert lines[-2:] == [["MLflow", mlflow], ["Prefect", prefect]]
