"""Who may reach the servers, and what of a database's address may be seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.server.security_utils import is_allowed_host_header, should_block_cors_request

from model.common.errors import UserError
from tasks.project.project import Project
from tasks.servers.request_guard import HOSTS_VARIABLE, is_loopback
from tasks.servers.server_plan import (
    MLFLOW_AUTH,
    PREFECT_AUTH,
    ServerSettings,
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
    assert hosts == ["localhost", "127.0.0.1", "[::1]", "localhost:*", "127.0.0.1:*", "[[]::1]:*"]
    assert "--cors-allowed-origins" not in mlflow.command


def test_further_names_are_those_of_the_address_and_of_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Host7")
    settings = ServerSettings(host="0.0.0.0", allowed_hosts=("cloze.example", "[fd00::7]"))
    assert settings.hosts == ["host7", "cloze.example", "fd00::7"]
    mlflow, prefect = (server_specs(Project(tmp_path, tmp_path), settings)[name] for name in ("mlflow", "prefect"))
    assert prefect.environment[HOSTS_VARIABLE] == mlflow.environment[HOSTS_VARIABLE] == "host7,cloze.example,fd00::7"
    hosts = mlflow.command[mlflow.command.index("--allowed-hosts") + 1].split(",")
    assert is_allowed_host_header(hosts, "cloze.example:443") and is_allowed_host_header(hosts, "[fd00::7]:5000")
    assert not is_allowed_host_header(hosts, "10.attacker.example"), "MLflow's default accepts it"
    origins = mlflow.command[mlflow.command.index("--cors-allowed-origins") + 1].split(",")
    assert not should_block_cors_request("http://host7:5000", "POST", origins)
    assert should_block_cors_request("http://attacker.example", "POST", origins)
    assert ServerSettings(host="10.0.0.7").hosts == ["10.0.0.7", "host7"] and not ServerSettings().hosts
    for wrong in ("http://cloze.example", "cloze.example:443", "*", "a,b"):
        with pytest.raises(UserError, match="--allowed-host: expected a name"):
            ServerSettings(allowed_hosts=(wrong,))
