"""The databases that infra/ makes, in a real PostgreSQL: each server's role reaches its own, with PGPASSWORD."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.infra.manifests import INFRA, KUBERNETES

pytestmark = pytest.mark.cluster
PASSWORDS = {"prefect": 'it\'s $a "word"', "mlflow": "an\\other:one@x"}


def program(name: str) -> str:
    """One of PostgreSQL's; skips where it is not installed."""
    found = shutil.which(name) or next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)
    if found is None:
        pytest.skip(f"{name}, of PostgreSQL's server, is not on this machine")
    return found


class Server:
    """A PostgreSQL that asks for passwords at its port, as the containers start it; its superuser takes the socket."""

    def __init__(self, folder: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self._user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
        if self._user:
            shutil.chown(folder, self._user)
        self._run("initdb", "--username=postgres", "--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync")
        self._run("pg_ctl", "-w", "-l", f"{folder}/log", "-o", f"-p {self.port} -k {folder} -F", "start")

    def _run(self, name: str, *words: str) -> None:
        command = [program(name), "-D", f"{self.folder}/data", *words]
        subprocess.run(command, user=self._user, cwd=self.folder, check=True, stdout=subprocess.DEVNULL, timeout=120)

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "stop")

    def as_superuser(self, *command: str, **more: str) -> None:
        """Run a client's command."""
        tools = f"{Path(program('psql')).parent}:{os.environ['PATH']}"
        environment = {"PATH": tools, "PGHOST": self.folder, "PGPORT": str(self.port), "PGUSER": "postgres", **more}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=60)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path has to be short
        made = Server(folder)
        try:
            yield made
        finally:
            made.stop()


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_each_server_reaches_its_own_database_and_no_other(
    server: Server, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "compose":
        script = (INFRA / "compose" / "databases.sql").read_text()
        for name, password in PASSWORDS.items():
            (tmp_path / f"{name}_database_password").write_text(password)
        (tmp_path / "databases.sql").write_text(script.replace("/run/secrets", str(tmp_path)))
        server.as_superuser("psql", "--set=ON_ERROR_STOP=1", f"--file={tmp_path}/databases.sql")
    else:
        script = str(KUBERNETES / "components" / "stores" / "databases.sh")
        passwords = {f"{name.upper()}_PASSWORD": password for name, password in PASSWORDS.items()}
        server.as_superuser("sh", script, **passwords)
    try:
        monkeypatch.setenv("PGPASSWORD", PASSWORDS["prefect"])
        assert asyncio.run(owner(f"postgresql+asyncpg://prefect@127.0.0.1:{server.port}/prefect")) == "prefect"
        for database in ("mlflow", "mlflow_auth"):
            monkeypatch.setenv("PGPASSWORD", PASSWORDS["mlflow"])
            engine = create_engine(f"postgresql://mlflow@127.0.0.1:{server.port}/{database}")
            with engine.begin() as connection:
                connection.execute(text("CREATE TABLE one (id integer)"))
            monkeypatch.setenv("PGPASSWORD", PASSWORDS["prefect"])
            with pytest.raises(Exception, match="permission denied"):
                asyncio.run(owner(f"postgresql+asyncpg://prefect@127.0.0.1:{server.port}/{database}"))
            engine.dispose()
    finally:
        for statement in (
            *(f"DATABASE {name}" for name in ("prefect", "mlflow", "mlflow_auth")),
            "ROLE prefect, mlflow",
        ):
            server.as_superuser("psql", f"--command=DROP {statement}")


async def owner(address: str) -> str:
    """Who owns the database, asked as Prefect connects; its extension can be made there."""
    engine = create_async_engine(address)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("CREATE EXTENSION IF NOT EXISTS pg_trgm"))
            question = "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()"
            return str((await connection.execute(text(question))).scalar_one())
    finally:
        await engine.dispose()
