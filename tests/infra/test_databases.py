"""Databases of infra/ in a real PostgreSQL: each server's role reaches only its databases, with PGPASSWORD."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.infra.manifests import INFRA, KUBERNETES
from tests.servers import Postgres

pytestmark = pytest.mark.cluster
PASSWORDS = {"postgres": "x", "prefect": 'it\'s $a "word"', "mlflow": "an\\other:one@x"}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    pytest.importorskip("psycopg2")
    made = Postgres()
    made.execute(f"CREATE ROLE postgres SUPERUSER LOGIN PASSWORD '{PASSWORDS['postgres']}'")  # as the image has it
    yield made
    made.close()


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_each_server_reaches_only_its_database(
    server: Postgres, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{server.server.port}"
    psql = {"PATH": os.environ["PATH"], "PGHOST": "127.0.0.1", "PGPORT": str(server.server.port), "PGUSER": "postgres"}
    psql["PGPASSWORD"] = PASSWORDS["postgres"]
    if where == "compose":
        for name, password in PASSWORDS.items():
            (tmp_path / f"{name}_database_password").write_text(password)
        script = (INFRA / "compose" / "databases.sql").read_text().replace("/run/secrets", str(tmp_path))
        (tmp_path / "databases.sql").write_text(script)
        command = ["psql", "--set=ON_ERROR_STOP=1", f"--file={tmp_path}/databases.sql"]
    else:
        psql |= {f"{name.upper()}_PASSWORD": password for name, password in PASSWORDS.items()}
        command = ["sh", str(KUBERNETES / "components" / "stores" / "databases.sh")]
    subprocess.run(command, env=psql, check=True, stdout=subprocess.DEVNULL, timeout=60)

    monkeypatch.setenv("PGPASSWORD", PASSWORDS["prefect"])
    assert asyncio.run(owner(f"postgresql+asyncpg://prefect@{address}/prefect")) == "prefect"
    for database in ("mlflow", "mlflow_auth"):
        with pytest.raises(Exception, match="permission denied"):
            asyncio.run(owner(f"postgresql+asyncpg://prefect@{address}/{database}"))
    monkeypatch.setenv("PGPASSWORD", PASSWORDS["mlflow"])
    for database in ("mlflow", "mlflow_auth"):
        engine = create_engine(f"postgresql://mlflow@{address}/{database}")
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE one (id integer)"))
        engine.dispose()
    for what in ("DATABASE prefect", "DATABASE mlflow", "DATABASE mlflow_auth", "ROLE prefect, mlflow"):
        server.execute(f"DROP {what}")


async def owner(address: str) -> str:
    """Return the owner of the database, over Prefect's connection; Prefect's extension can be created."""
    engine = create_async_engine(address)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("CREATE EXTENSION IF NOT EXISTS pg_trgm"))
            question = "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()"
            return str((await connection.execute(text(question))).scalar_one())
    finally:
        await engine.dispose()
