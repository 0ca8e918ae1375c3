"""Options of `cloze up`: server addresses and storage."""

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
    """Servers of one machine."""

    host: str = "127.0.0.1"
    """Address that both servers listen on. Addresses that other machines can reach require authentication on both."""
    prefect_port: int = Field(4200, ge=1, le=65535)
    """The port of Prefect's page and API."""
    mlflow_port: int = Field(5000, ge=1, le=65535)
    """The port of MLflow's page and API."""
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

    @model_validator(mode="after")
    def _two_ports(self) -> ServerSettings:
        if self.prefect_port == self.mlflow_port:
            raise UserError(f"both servers use port {self.mlflow_port}; choose different ports")
        if self.database and urlsplit(self.database).scheme not in ("postgresql", "postgres"):
            raise UserError("--database: expected postgresql://user@host/name; without it SQLite is used")
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
    def _reached(self) -> str:
        host = self.host if is_loopback(self.host) else "127.0.0.1"
        return f"[{host}]" if ":" in host else host

    def require_safe(self) -> None:
        """Require authentication if other machines can reach the servers.

        Raises:
            UserError: the address is not a loopback address, and authentication is not set up.
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
    """Check whether `host` is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
