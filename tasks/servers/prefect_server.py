"""The Prefect server of a run: a configured or running one, else a temporary server for the run."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from model.common.errors import UserError
from model.common.redaction import redacted
from tasks.jobs.local_launcher import end, last_line, start
from tasks.project.progress import echo
from tasks.project.project import Project

START_SECONDS = 120.0  # the first start creates the database
ANSWER_SECONDS = 30.0
_API, _AUTH = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"


@contextlib.contextmanager
def prefect_server(project: Project, meanwhile: Callable[[], object]) -> Iterator[str]:
    """Provide a Prefect API during the block, at PREFECT_API_URL for flows and children, and yield its URL.

    Args:
        meanwhile: called while the server starts, for example to import flows.

    Raises:
        UserError: the configured server does not respond or rejects the request, or the temporary one does not start.
    """
    if os.environ.get(_API):
        _require_answer(os.environ[_API])
        meanwhile()
        yield os.environ[_API]
        return
    port = _free_port()
    log_path = project.prefect_home / "server.log"
    # guarded and in a separate session: ends with this process in any case
    uvicorn = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--host", "127.0.0.1"]
    guard = [sys.executable, "-P", "-m", "model.common.process_guard"]
    server = start([*guard, sys.executable, "-P", *uvicorn, "--port", str(port), "--log-level", "warning"], log_path)
    url = f"http://127.0.0.1:{port}/api"
    try:
        os.environ[_API] = url
        meanwhile()
        _wait_until_healthy(url, server, log_path)
        yield url
    finally:
        os.environ.pop(_API, None)
        _drain()
        end(server, 10)


def _require_answer(url: str) -> None:
    """Ask a configured server; one that is being started anew is waited for."""
    request = urllib.request.Request(f"{url.rstrip('/')}/admin/version")
    if os.environ.get("PREFECT_API_KEY"):
        request.add_header("Authorization", f"Bearer {os.environ['PREFECT_API_KEY']}")
    elif os.environ.get(_AUTH):
        request.add_header("Authorization", f"Basic {base64.b64encode(os.environ[_AUTH].encode()).decode()}")
    deadline, said = time.monotonic() + ANSWER_SECONDS, False
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise UserError(
                    f"{_API}: the server at {redacted(url)} rejects the request ({error.code}); set"
                    f" {_AUTH} (user:password), or PREFECT_API_KEY"
                ) from None
            return  # it responds; Prefect's client handles other errors
        except OSError as error:
            reason = redacted(str(getattr(error, "reason", error)))
        if time.monotonic() > deadline:
            raise UserError(
                f"{_API}: no server responds at {redacted(url)} ({reason}); start it (`cloze up`), or unset {_API}"
                " to let the run start a temporary server"
            )
        if not said:
            said = True
            echo(f"cloze: waiting for Prefect's server at {redacted(url)} ({reason})")
        time.sleep(1)


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise UserError(f"the Prefect server failed to start: {last_line(log_path)} (log: {log_path})")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
            return
        time.sleep(0.05)
    raise UserError(f"the Prefect server did not respond within {START_SECONDS:.0f} s (log: {log_path})")


def _drain() -> None:
    """Let Prefect send its last logs and events before the server ends."""
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        try:
            worker.drain_all(timeout=5)
        except Exception as error:  # only log lines are lost, not results
            echo(f"cloze: the last Prefect messages were not sent ({type(error).__name__})")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
