"""The Prefect server of a run: the user's own when one is configured or up, else one that lives as long as the run."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

from model.errors import UserError
from tasks.launch.local import last_line, start
from tasks.progress import say
from tasks.project import Project

START_SECONDS = 120.0  # a first start makes the database
_API = "PREFECT_API_URL"


@contextlib.contextmanager
def prefect_server(project: Project, meanwhile: Callable[[], object]) -> Iterator[str]:
    """A Prefect API for the block, as its URL; PREFECT_API_URL is set so that flows and children use it.

    `meanwhile` is called while the server starts (to import flows, say).
    """
    if os.environ.get(_API):
        meanwhile()
        yield os.environ[_API]
        return
    port = _free_port()
    log_path = project.prefect_home / "server.log"
    # under the lifeline, in a group of its own: killed with this process, however that ends
    uvicorn = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--host", "127.0.0.1"]
    guard = [sys.executable, "-P", "-m", "model.lifeline"]
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
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
        if server.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, 9)


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes], log_path: object) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise UserError(f"the Prefect server ended at its start: {last_line(log_path)} (log: {log_path})")  # type: ignore[arg-type]
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"{url}/health", timeout=2),
        ):
            return
        time.sleep(0.05)
    raise UserError(f"the Prefect server did not answer in {START_SECONDS:.0f} s (log: {log_path})")


def _drain() -> None:
    """Let Prefect send its last logs and events while the server is still there."""
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        try:
            worker.drain_all(timeout=5)
        except Exception as error:  # what is lost is lines on a page, not results
            say(f"cloze: the last Prefect messages were not sent ({type(error).__name__})")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
