"""What `cloze up` is told: where the servers listen and where they keep their records."""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from model.common.config_base import Settings
from model.common.errors import UserError

POOL = "cloze-process"
PREFECT_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
MLFLOW_AUTH = "MLFLOW_AUTH_CONFIG_PATH"


class ServerSettings(Settings):
    """The servers of one machine."""

    host: str = "127.0.0.1"
    """The address that both servers listen on; one that others can reach needs authentication on both."""
    prefect_port: int = Field(4200, ge=1, le=65535)
    """The port of Prefect's page and API."""
    mlflow_port: int = Field(5000, ge=1, le=65535)
    """The port of MLflow's page and API."""
    database: str = ""
    """postgresql://user@host/name for the records of both servers, in the schemas `prefect` and `mlflow`; none keeps
    them in SQLite files below .cloze/."""
    artifacts: str = ""
    """Where MLflow keeps artifacts, like s3://bucket/folder: the server passes them on, so that only it needs the keys;
    none keeps them below .cloze/."""
    pool: str = Field(default=POOL, pattern=r"^[a-z0-9][a-z0-9-]*$")
    """The work pool whose runs this machine's worker takes."""
    limit: int = Field(default=4, ge=1)
    """Runs that the worker starts side by side; those of one folder still go one after another."""

    @model_validator(mode="after")
    def _two_ports(self) -> ServerSettings:
        if self.prefect_port == self.mlflow_port:
            raise UserError(f"port {self.mlflow_port} is asked for twice; give the servers different ports")
        if self.database and urlsplit(self.database).scheme not in ("postgresql", "postgres"):
            raise UserError("--database: expected postgresql://user@host/name; without it SQLite is used")
        return self

    @property
    def prefect_api(self) -> str:
        """The address of Prefect's API for this machine's processes."""
        return f"http://{self._reached}:{self.prefect_port}/api"

    @property
    def mlflow_url(self) -> str:
        """The address of MLflow for this machine's processes."""
        return f"http://{self._reached}:{self.mlflow_port}"

    @property
    def shown_database(self) -> str:
        """The database as a page or a log may show it: without a password."""
        if not self.database:
            return "SQLite"
        parts = urlsplit(self.database)
        return f"postgresql://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"

    @property
    def _reached(self) -> str:
        host = self.host if is_loopback(self.host) else "127.0.0.1"
        return f"[{host}]" if ":" in host else host

    def require_safe(self) -> None:
        """Refuse to listen where others can reach the servers, unless both ask who they are.

        Raises:
            UserError: the address is not this machine's own, and authentication is not set up.
        """
        if is_loopback(self.host):
            return
        missing = [name for name in (PREFECT_AUTH, MLFLOW_AUTH) if not os.environ.get(name)]
        if missing:
            raise UserError(
                f"--host {self.host}: others could reach the servers; set {' and '.join(missing)} (docs/operations.md),"
                " or keep 127.0.0.1 and use an SSH tunnel"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
