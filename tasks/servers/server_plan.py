"""Settings of `cloze up`, and commands, environments, health checks and database of the servers and the worker.

Prefect and MLflow share one PostgreSQL database with a schema each, because both have a table of the same name.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from pydantic import Field, model_validator

from model.common.config_base import Settings
from model.common.errors import UserError, missing_package
from model.common.files import digest_of
from model.common.state_files import read_state
from tasks.project.project import Project
from tasks.servers.processes import read_process
from tasks.servers.request_guard import HOSTS_VARIABLE, is_loopback
from tasks.tracking.tracking import EXPERIMENT

ORDER = ("prefect", "mlflow", "pages", "worker")
SETTINGS = "settings.json"
PREFECT_UI = "/v2"
"""Path of the UI that Prefect opens by default; the same paths without it open the former UI."""
DEVICES = "cloze-device"
"""Name of the concurrency limit for this machine's devices."""
DEVICES_VARIABLE = "CLOZE_DEVICE_LIMIT"
PREFECT_SERVER = ("--factory", "tasks.servers.request_guard:prefect_app", "--log-level", "warning")
"""Arguments of uvicorn."""
SCHEMAS = ("prefect", "mlflow")
ANY_RUN = "cloze-run"  # tag of all flow runs, also of those from a terminal and of stages
POOL = "cloze-process"
PREFECT_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
MLFLOW_AUTH = "MLFLOW_AUTH_CONFIG_PATH"
MLFLOW_APP = "cloze"
"""Entry point of this package, by which `mlflow server` finds `tasks.servers.request_guard.mlflow_app`."""
NOTIFY_VARIABLE = "CLOZE_NOTIFY_URL"
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?")


class ServerSettings(Settings):
    """Servers of one machine."""

    host: str = "127.0.0.1"
    """Address that Prefect and MLflow listen on. Addresses that other machines can reach require authentication on
    both. The start page always listens on 127.0.0.1."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names and addresses in the URLs of Prefect and MLflow, such as that of a proxy."""
    prefect_port: int = Field(4200, ge=1, le=65535)
    mlflow_port: int = Field(5000, ge=1, le=65535)
    pages_port: int = Field(4201, ge=1, le=65535)
    """Port of the start page."""
    database: str = ""
    """postgresql://user@host/name for both servers, in the schemas `prefect` and `mlflow`; empty uses SQLite files
    below .cloze/."""
    artifacts: str = ""
    """Artifact store of MLflow, such as s3://bucket/prefix. Clients access it through the server, so only the server
    needs credentials. Empty stores artifacts below .cloze/."""
    pool: str = Field(default=POOL, pattern=r"^[a-z0-9][a-z0-9-]*$")
    """Work pool of this machine's worker."""
    limit: int = Field(default=4, ge=1)
    """Maximum number of concurrent runs; runs in the same directory are still sequential."""
    cron: str | None = None
    """Schedule of retraining; None for that of params.yaml."""

    @model_validator(mode="after")
    def _check(self) -> ServerSettings:
        ports = [self.prefect_port, self.mlflow_port, self.pages_port]
        if twice := next((port for port in ports if ports.count(port) > 1), None):
            raise UserError(f"two servers use port {twice}; choose different ports")
        if self.database and urlsplit(self.database).scheme not in ("postgresql", "postgres"):
            raise UserError("--database: expected postgresql://user@host/name; without it SQLite is used")
        if urlsplit(self.artifacts).username is not None:
            raise UserError("--artifacts: user and password are not allowed; set AWS_PROFILE")
        if wrong := next((host for host in self.allowed_hosts if not _HOST.fullmatch(host)), None):
            raise UserError(f"--allowed-host: expected a name or an address without a port, got {wrong!r}")
        return self

    @property
    def prefect_api(self) -> str:
        """URL of the Prefect API for processes on this machine."""
        return f"http://{self._reached}:{self.prefect_port}/api"

    @property
    def mlflow_url(self) -> str:
        """URL of MLflow for processes on this machine."""
        return f"http://{self._reached}:{self.mlflow_port}"

    @property
    def shown_database(self) -> str:
        """The database without credentials, for logs and pages."""
        if not self.database:
            return "SQLite"
        parts = urlsplit(self.database)
        return f"postgresql://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"

    @property
    def hosts(self) -> list[str]:
        """Names and addresses at which Prefect and MLflow are served besides those of the loopback interface."""
        own = () if is_loopback(self.host) else (self.host, socket.gethostname())
        return [host.lower().strip("[]") for host in (*own, *self.allowed_hosts) if host not in ("0.0.0.0", "::")]

    @property
    def _reached(self) -> str:
        host = self.host if is_loopback(self.host) else "127.0.0.1"
        return f"[{host}]" if ":" in host else host

    def require_safe(self) -> None:
        """Require authentication if other machines can reach the servers.

        Raises:
            UserError: the address is not a loopback address, and authentication is not set up; or others can read the
                password of MLflow.
        """
        passwords = Path(os.environ.get(MLFLOW_AUTH, ""))
        if passwords.is_file() and passwords.stat().st_mode & 0o077:
            raise UserError(f"{MLFLOW_AUTH}: others can read {passwords}; run `chmod 600 {passwords}`")
        if is_loopback(self.host):
            return
        missing = [name for name in (PREFECT_AUTH, MLFLOW_AUTH) if not os.environ.get(name)]
        if missing:
            raise UserError(
                f"--host {self.host}: others could reach the servers; set {' and '.join(missing)} (docs/operations.md),"
                " or keep 127.0.0.1 and use an SSH tunnel"
            )


@dataclass(frozen=True)
class ServerState:
    """State of a server or the worker."""

    name: str
    state: str
    """up, does not answer, or dead."""
    pid: int | None
    since: float
    """Seconds since the epoch; 0 if it is dead."""
    address: str


@dataclass(frozen=True)
class ServerSpec:
    """Command, additional environment variables and address of a server or the worker."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    address: str = ""
    port: int = 0
    answers: Callable[[], bool] = lambda: True

    @property
    def digest(self) -> str:
        return digest_of([self.command, sorted(self.environment.items())])


def servers_folder(project: Project) -> Path:
    return project.home / ".cloze" / "servers"


def running_address(project: Project, name: str) -> str:
    """Return the address of a server for processes on this machine; empty if it is not running."""
    server = read_process(servers_folder(project), name)
    if server is None or server.process is None:
        return ""
    return server.address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def recorded_settings(project: Project) -> ServerSettings | None:
    """Read the settings of the last `cloze up`; None after `cloze down`."""
    path = servers_folder(project) / SETTINGS
    record = read_state(path)
    if record.get("database") == "SQLite":
        record["database"] = ""
    return ServerSettings.parse(record, str(path)) if record else None


def server_states(project: Project, settings: ServerSettings) -> list[ServerState]:
    """Ask the servers and the worker whether they respond."""
    states = []
    for name, spec in server_specs(project, settings).items():
        server = read_process(servers_folder(project), name)
        if server is None or server.process is None:
            states.append(ServerState(name, "dead", None, 0.0, spec.address))
            continue
        answers = worker_is_online(settings) if name == "worker" else spec.answers()
        states.append(
            ServerState(name, "up" if answers else "does not answer", server.pid, server.started, spec.address)
        )
    return states


def worker_is_online(settings: ServerSettings) -> bool:
    found = get(f"{settings.prefect_api}/work_pools/{settings.pool}/workers/filter", {})
    return any(worker.get("status") == "ONLINE" for worker in found or [])


def mlflow_experiment(settings: ServerSettings) -> dict[str, Any]:
    """Ask MLflow for the experiment; empty before the first run, or if MLflow does not respond."""
    url = f"{settings.mlflow_url}/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(EXPERIMENT)}"
    found = get(url)
    return found["experiment"] if isinstance(found, dict) else {}


def server_specs(project: Project, settings: ServerSettings) -> dict[str, ServerSpec]:
    """The servers and the worker by name, in starting order."""
    parts = (_prefect(settings), _mlflow(project, settings), _pages(settings), _worker(settings))
    return {part.name: part for part in parts}


def _prefect(settings: ServerSettings) -> ServerSpec:
    environment = {
        HOSTS_VARIABLE: ",".join(settings.hosts),
        "PREFECT_UI_API_URL": settings.prefect_api,
        "PREFECT_SERVER_API_HOST": settings.host,
        "PREFECT_SERVER_API_PORT": str(settings.prefect_port),
        "PREFECT_API_URL": "",  # a server contacts no other server
        "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "true",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    if settings.database:
        environment |= prefect_environment(settings.database)
    port, address = settings.prefect_port, f"http://{settings.host}:{settings.prefect_port}"
    command = [*_module("uvicorn", *PREFECT_SERVER), "--host", settings.host, "--port", str(port)]
    health = f"{settings.prefect_api}/health"
    return ServerSpec("prefect", command, environment, address, port, lambda: get(health) is True)


def _mlflow(project: Project, settings: ServerSettings) -> ServerSpec:
    port, address = settings.mlflow_port, f"http://{settings.host}:{settings.mlflow_port}"
    command = [*_module("mlflow", "server", "--workers", "1"), "--host", settings.host, "--port", str(port)]
    if settings.artifacts:
        command += ["--artifacts-destination", settings.artifacts, "--serve-artifacts"]
    else:  # a directory, so that runs without the server find the same artifacts
        command += ["--default-artifact-root", (project.mlflow_home / "artifacts").as_uri(), "--no-serve-artifacts"]
    hosts = [f"[{host}]" if ":" in host else host for host in ("localhost", "127.0.0.1", "::1", *settings.hosts)]
    globs = [host.replace("[", "[[]") + ":*" for host in hosts]
    command += ["--allowed-hosts", ",".join((*hosts, *globs))]
    if settings.hosts:  # MLflow counts the origin of its own pages as another one; it always allows those of loopback
        origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in (*hosts, *globs)]
        command += ["--cors-allowed-origins", ",".join(origins)]
    command += ["--app-name", MLFLOW_APP]
    sqlite = f"sqlite:///{project.mlflow_home / 'mlflow.db'}"
    environment = {
        HOSTS_VARIABLE: ",".join(settings.hosts),
        # not on the command line, which all users of this machine can read
        "MLFLOW_BACKEND_STORE_URI": mlflow_uri(settings.database) if settings.database else sqlite,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_TRACKING_URI": "",
    }
    health = f"{settings.mlflow_url}/health"
    return ServerSpec("mlflow", command, environment, address, port, lambda: get(health) is not None)


def _pages(settings: ServerSettings) -> ServerSpec:
    port, address = settings.pages_port, f"http://127.0.0.1:{settings.pages_port}"
    command = _module("tasks.servers.start_page", str(port))
    return ServerSpec("pages", command, {}, address, port, lambda: get(f"{address}/health") is not None)


def _worker(settings: ServerSettings) -> ServerSpec:
    command = _module("prefect", "worker", "start", "--type", "process", "--pool", settings.pool, "--name", "cloze")
    environment = {
        "PREFECT_API_URL": settings.prefect_api,
        "MLFLOW_TRACKING_URI": settings.mlflow_url,
        "PREFECT_WORKER_QUERY_SECONDS": "5",
        DEVICES_VARIABLE: DEVICES,
    }
    if PREFECT_AUTH in os.environ:
        environment["PREFECT_API_AUTH_STRING"] = os.environ[PREFECT_AUTH]
    return ServerSpec("worker", [*command, "--limit", str(settings.limit)], environment)


def webhook() -> str:
    """Return the webhook for failed, late and long runs; empty without one.

    Raises:
        UserError: it is not an http:// or https:// URL.
    """
    url = os.environ.get(NOTIFY_VARIABLE, "")
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise UserError(f"{NOTIFY_VARIABLE}: expected the http:// or https:// URL of a webhook")  # it is a secret
    return url


def other_artifact_location(settings: ServerSettings) -> str:
    """Return the artifact location of the existing experiment if it differs from `settings`, else an empty text.

    MLflow fixes the location when it creates an experiment.
    """
    if not settings.artifacts:
        return ""
    place = str(mlflow_experiment(settings).get("artifact_location", "mlflow-artifacts:"))
    return "" if place.startswith("mlflow-artifacts:") else place


def _module(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", *words]


def get(url: str, body: dict[str, Any] | None = None) -> Any:
    """Request a URL of a local server and return its JSON or text; None if the request fails."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    auth = os.environ.get(PREFECT_AUTH)
    if auth:
        request.add_header("Authorization", f"Basic {base64.b64encode(auth.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=3) as answer:
            text = answer.read().decode()
    except OSError:
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
        raise missing_package(error, "--database") from error
    try:
        connection = psycopg2.connect(_with_scheme(database, "postgresql"), connect_timeout=10)
        with contextlib.closing(connection), connection, connection.cursor() as cursor:
            for schema in SCHEMAS:
                cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            # Prefect's indexes need it in the search path
            cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm SCHEMA prefect")
    except psycopg2.Error as error:
        line, password = " ".join(str(error).split()), urlsplit(database).password
        raise UserError(f"--database: {line.replace(password, '***') if password else line}") from None


def _with_scheme(database: str, scheme: str) -> str:
    return urlunsplit(urlsplit(database)._replace(scheme=scheme))
