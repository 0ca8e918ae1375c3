"""Refusal of requests that websites send through a browser: DNS rebinding and cross-site requests.

A website can make a browser on this machine send requests to the servers of `cloze up`. A host name of its own that
resolves to this machine (DNS rebinding) shows in the header Host, and its pages show in Origin or Sec-Fetch-Site, which
pages cannot change. Programs send neither of the latter two and are served.

The start page calls `refusal`; the servers of Prefect and MLflow run behind `RequestGuard`. Prefect checks none of
these headers, and allows every website to read its answers. MLflow checks Host, and Origin for the requests below /api
that change something, but not for others, such as those to its AI gateway.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any

HOSTS_VARIABLE = "CLOZE_ALLOWED_HOSTS"
"""Names of Prefect's and MLflow's servers besides those of this machine's loopback interface, separated by commas."""
_AUTHORITY = re.compile(r"(?:https?://)?(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]@:/\s]+))(?::\d+)?")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refusal(header: Callable[[str], str | None], hosts: Collection[str] = ()) -> str:
    """Return why a request is refused; empty if it is served.

    Args:
        header: Returns the header with a name, whatever its case.
        hosts: Names and addresses of the server besides those of the loopback interface.
    """
    host = header("host") or ""
    if not _is_ours(host, hosts):
        return f"the host name {host[:100]!r} is not one of this server"
    origin = header("origin")
    if origin is not None:
        return "" if _is_ours(origin, hosts) else f"requests from the website {origin[:100]!r} are refused"
    is_link = (header("sec-fetch-mode"), header("sec-fetch-dest")) == ("navigate", "document")
    if header("sec-fetch-site") == "cross-site" and not is_link:
        return "requests from other websites are refused"
    return ""


def _is_ours(authority: str, hosts: Collection[str]) -> bool:
    """Check the host of a Host or Origin header; the pages link to each other, so any port is accepted."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return False
    name = (found[1] or found[2]).lower()
    return is_loopback(name) or name in hosts


class RequestGuard:
    """ASGI application that answers refused requests with 403, and closes refused websockets."""

    def __init__(self, app: Any, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope.get("headers", ())}
        reason = "" if scope["type"] == "lifespan" else refusal(headers.get, self._hosts)
        if not reason:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            content = f"{reason}; see --allowed-host of `cloze up`\n".encode()
            kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
            await send({"type": "http.response.start", "status": 403, "headers": kind})
            await send({"type": "http.response.body", "body": content})


def prefect_app() -> Any:
    """Create Prefect's server behind the guard, for uvicorn."""
    from prefect.server.api.server import create_app

    return RequestGuard(create_app(), _hosts())


def mlflow_app() -> Any:
    """Create MLflow's server behind the guard, with accounts if they are set up: `mlflow server --app-name cloze`."""
    from mlflow.environment_variables import MLFLOW_AUTH_CONFIG_PATH

    if MLFLOW_AUTH_CONFIG_PATH.get():
        from mlflow.server.auth import create_app

        return RequestGuard(create_app(), _hosts())
    from mlflow.server.fastapi_app import app

    return RequestGuard(app, _hosts())


def _hosts() -> list[str]:
    return os.environ.get(HOSTS_VARIABLE, "").split(",")
