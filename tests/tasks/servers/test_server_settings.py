"""Who may reach the servers, and what of a database's address may be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.project.project import Project
from tasks.servers.server_plan import (
    MLFLOW_AUTH,
    PREFECT_AUTH,
    ServerSettings,
    is_loopback,
    mlflow_uri,
    prefect_environment,
    server_specs,
)

DATABASE = "postgresql://ann:s3cret@db.example:5433/cloze"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_needs_no_password(host: str) -> None:
    assert is_loopback(host)
    ServerSettings(host=host).require_safe()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", "localhost.example.org"])
def test_others_are_refused_without_authentication(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PREFECT_AUTH, raising=False)
    monkeypatch.delenv(MLFLOW_AUTH, raising=False)
    with pytest.raises(UserError, match=PREFECT_AUTH):
        ServerSettings(host=host).require_safe()
    monkeypatch.setenv(PREFECT_AUTH, "ann:pass")
    with pytest.raises(UserError, match=MLFLOW_AUTH):
        ServerSettings(host=host).require_safe()
    monkeypatch.setenv(MLFLOW_AUTH, "auth.ini")
    ServerSettings(host=host).require_safe()


def test_each_server_gets_a_schema_of_its_own() -> None:
    prefect = prefect_environment(DATABASE)
    assert prefect["PREFECT_SERVER_DATABASE_CONNECTION_URL"].startswith("postgresql+asyncpg://ann:s3cret@db.example")
    assert prefect["PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH"] == "prefect"
    assert mlflow_uri(DATABASE).endswith("/cloze?options=-csearch_path%3Dmlflow")


def test_a_password_is_on_no_command_line_and_not_shown(tmp_path: Path) -> None:
    settings = ServerSettings(database=DATABASE)
    assert settings.shown_database == "postgresql://db.example:5433/cloze"
    for part in server_specs(Project(tmp_path, tmp_path), settings).values():
        assert "s3cret" not in " ".join(part.command)
        assert "s3cret" not in part.digest


def test_mistakes_are_said() -> None:
    with pytest.raises(UserError, match="different ports"):
        ServerSettings(prefect_port=5000, mlflow_port=5000)
    with pytest.raises(UserError, match="different ports"):
        ServerSettings(pages_port=5000, mlflow_port=5000)
    with pytest.raises(UserError, match="postgresql://"):
        ServerSettings(database="mysql://x/y")


def test_mlflow_runs_no_jobs_and_answers_this_machine_only(tmp_path: Path) -> None:
    mlflow = server_specs(Project(tmp_path, tmp_path), ServerSettings())["mlflow"]
    assert mlflow.environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    hosts = mlflow.command[mlflow.command.index("--allowed-hosts") + 1].split(",")
    assert hosts == ["localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "[[]::1]", "[[]::1]:*"]
