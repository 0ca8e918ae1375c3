"""Commands, environments, health checks and database of the servers and the worker.

Both servers share one PostgreSQL database with a schema each, because both have a table of the same name.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from model.common.errors import UserError
from model.common.files import digest_of
from tasks.params.servers import MLFLOW_AUTH, ServerSettings, is_loopback
from tasks.project.project import Project
from tasks.tracking.forward import EXPERIMENT

ORDER = ("prefect", "mlflow", "worker")
DEVICES = "cloze-device"
"""Name of the concurrency limit for this machine's devices."""
DEVICES_VARIABLE = "CLOZE_DEVICE_LIMIT"
HEARTBEAT_SECONDS = 30  # Prefect's minimum
SCHEMAS = ("prefect", "mlflow")


@dataclass(frozen=True)
class ServerSpec:
    """Command, additional environment variables and address of a server or the worker."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    address: str = ""
    port: int = 0
    option: str = ""
    """Option of `cloze up` that sets the port."""
    answers: Callable[[], bool] = lambda: True

    @property
    def digest(self) -> str:
        """Hash of command and environment."""
        return digest_of([self.command, sorted(self.environment.items())])


def servers_folder(project: Project) -> Path:
    """Directory with records and logs of the servers."""
    return project.home / ".cloze" / "servers"


def server_specs(project: Project, settings: ServerSettings) -> dict[str, ServerSpec]:
    """The servers and the worker by name, in starting order."""
    return {part.name: part for part in (_prefect(settings), _mlflow(project, settings), _worker(settings))}


def _prefect(settings: ServerSettings) -> ServerSpec:
    uvicorn = ["uvicorn", "--factory", "prefect.server.api.server:create_app", "--log-level", "warning"]
    address = f"http://{settings.host}:{settings.prefect_port}"
    environment = {
        "PREFECT_UI_API_URL": settings.prefect_api,
        "PREFECT_SERVER_API_HOST": settings.host,
        "PREFECT_SERVER_API_PORT": str(settings.prefect_port),
        "PREFECT_API_URL": "",  # a server contacts no other server
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    if settings.database:
        environment |= prefect_environment(settings.database)
    return ServerSpec(
        "prefect",
        [*_module(*uvicorn), "--host", settings.host, "--port", str(settings.prefect_port)],
        environment,
        address,
        settings.prefect_port,
        "--prefect-port",
        lambda: get(f"{settings.prefect_api}/health") is True,
    )


def _mlflow(project: Project, settings: ServerSettings) -> ServerSpec:
    command = [*_module("mlflow", "server", "--workers", "1")]
    command += ["--host", settings.host, "--port", str(settings.mlflow_port)]
    if settings.artifacts:
        command += ["--artifacts-destination", settings.artifacts, "--serve-artifacts"]
    else:  # a directory, so that runs without the server find the same artifacts
        command += ["--default-artifact-root", (project.mlflow_home / "artifacts").as_uri(), "--no-serve-artifacts"]
    if is_loopback(settings.host):
        names = ("localhost", "127.0.0.1", "[[]::1]")  # the last is a glob pattern with escaped brackets
        command += ["--allowed-hosts", ",".join(f"{name}{port}" for name in names for port in ("", ":*"))]
    if os.environ.get(MLFLOW_AUTH):
        command += ["--app-name", "basic-auth"]
    environment = {
        # not on the command line, which all users of this machine can read
        "MLFLOW_BACKEND_STORE_URI": mlflow_uri(settings.database)
        if settings.database
        else f"sqlite:///{project.mlflow_home / 'mlflow.db'}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_TRACKING_URI": "",
    }
    return ServerSpec(
        "mlflow",
        command,
        environment,
        f"http://{settings.host}:{settings.mlflow_port}",
        settings.mlflow_port,
        "--mlflow-port",
        lambda: get(f"{settings.mlflow_url}/health") is not None,
    )


def _worker(settings: ServerSettings) -> ServerSpec:
    command = _module("prefect", "worker", "start", "--type", "process", "--pool", settings.pool, "--name", "cloze")
    environment = {
        "PREFECT_API_URL": settings.prefect_api,
        "MLFLOW_TRACKING_URI": settings.mlflow_url,
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "PREFECT_WORKER_QUERY_SECONDS": "5",
        DEVICES_VARIABLE: DEVICES,
    }
    if "PREFECT_SERVER_API_AUTH_STRING" in os.environ:
        environment["PREFECT_API_AUTH_STRING"] = os.environ["PREFECT_SERVER_API_AUTH_STRING"]
    return ServerSpec("worker", [*command, "--limit", str(settings.limit)], environment)


def other_artifact_location(settings: ServerSettings) -> str:
    """Return the artifact location of the existing experiment if it differs from `settings`, else an empty text.

    MLflow fixes the location when it creates an experiment.
    """
    if not settings.artifacts:
        return ""
    name = quote(EXPERIMENT)
    found = get(f"{settings.mlflow_url}/api/2.0/mlflow/experiments/get-by-name?experiment_name={name}")
    if not isinstance(found, dict):
        return ""
    place = str(found["experiment"]["artifact_location"])
    return "" if place.startswith("mlflow-artifacts:") else place


def _module(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", *words]


def get(url: str, body: dict[str, Any] | None = None) -> Any:
    """Request a URL of a local server and return its JSON or text; None if the request fails."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    auth = os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
    if auth:
        import base64

        request.add_header("Authorization", f"Basic {base64.b64encode(auth.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=3) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError):
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def prefect_environment(database: str) -> dict[str, str]:
    """Environment of the Prefect server: the asyncpg URL and the schema."""
    return {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": _with_scheme(database, "postgresql+asyncpg"),
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH": "prefect",
    }


def mlflow_uri(database: str) -> str:
    """Backend store URI of the MLflow server: the psycopg2 URL with the schema."""
    parts = urlsplit(_with_scheme(database, "postgresql"))
    query = [*parse_qsl(parts.query), ("options", "-csearch_path=mlflow")]
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


def make_schemas(database: str) -> None:
    """Create both schemas if they do not exist.

    Raises:
        UserError: psycopg2 is not installed, or the database cannot be reached or rejects the request.
    """
    try:
        import psycopg2
    except ImportError as error:
        raise UserError("--database: psycopg2 is missing; pip install -c constraints.txt -e '.[cluster]'") from error
    try:
        connection = psycopg2.connect(_with_scheme(database, "postgresql"), connect_timeout=10)
        try:
            with connection, connection.cursor() as cursor:
                for schema in SCHEMAS:
                    cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                # Prefect's indexes need it in the search path
                cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm SCHEMA prefect")
        finally:
            connection.close()
    except psycopg2.Error as error:
        raise UserError(f"--database: {_without_secrets(str(error), database)}") from None


def _with_scheme(database: str, scheme: str) -> str:
    return urlunsplit(urlsplit(database)._replace(scheme=scheme))


def _without_secrets(message: str, database: str) -> str:
    password = urlsplit(database).password
    line = " ".join(message.split())
    return line.replace(password, "***") if password else line
