"""The Prefect server that a run starts for itself, without `cloze up`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from model.common.errors import UserError
from tasks.jobs.local_launcher import end, last_line, start
from tasks.project.databases import set_aside_if_damaged
from tasks.project.progress import echo
from tasks.project.workspace import refuse_full
from tasks.servers.processes import PRIVATE_UMASK, private_directory
from tasks.servers.server_plan import PREFECT_SERVER

_START_SECONDS = 120.0  # the first start creates the database
_MAX_RESTARTS = 10


class TemporaryServer:
    """A Prefect server on a free port of 127.0.0.1, which ends with this process and is restarted if it dies.

    This process keeps the listening socket open, so that requests wait for the new server instead of failing.
    """

    def __init__(self, log_path: Path) -> None:
        self._log_path, self._database = log_path, log_path.with_name("prefect.db")
        self._inode: int | None = None
        private_directory(log_path.parent)
        log_path.touch(0o600)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._is_ending = threading.Event()
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="prefect-server")
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/api"

    def __enter__(self) -> TemporaryServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending.set()
        end(self._process, 10)
        if self._watcher.is_alive():
            self._watcher.join()
            end(self._process, 0)  # one that was started meanwhile
        self._listener.close()

    def wait_until_healthy(self) -> None:
        """Wait for the first answer, up to 120 s. From then on, the server is restarted whenever it dies.

        Raises:
            UserError: the server ended, or did not respond.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                if set_aside_if_damaged(self._database):
                    self._process = self._start()
                    continue
                refuse_full(self._log_path.parent)
                raise UserError(
                    f"the Prefect server failed to start: {last_line(self._log_path)} (log: {self._log_path})"
                )
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=2):
                self._inode = self._database_inode()
                self._watcher.start()
                return
        raise UserError(f"the Prefect server did not respond within {_START_SECONDS:.0f} s (log: {self._log_path})")

    def refuse_deleted(self) -> None:
        """Check that the server has the database that it started with.

        Raises:
            UserError: the SQLite file was deleted, so that the server no longer knows this run.
        """
        if self._database_inode() != self._inode:
            raise UserError(f"{os.path.relpath(self._database)} was deleted during the run; run the same command again")

    def _database_inode(self) -> int | None:
        try:
            return self._database.stat().st_ino
        except FileNotFoundError:
            return None  # the settings may name a database server

    def _start(self) -> subprocess.Popen[bytes]:
        # guarded and in a separate session: ends with this process in any case
        guard = [sys.executable, "-P", "-m", "model.common.process_guard"]
        descriptor = self._listener.fileno()
        command = [*guard, sys.executable, "-P", "-m", "uvicorn", *PREFECT_SERVER, "--fd", str(descriptor)]
        return start(command, self._log_path, pass_fds=(descriptor,), umask=PRIVATE_UMASK)

    def _watch(self) -> None:
        for _ in range(_MAX_RESTARTS):
            self._process.wait()
            if self._is_ending.is_set():
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # the server, if only its guard was killed
            echo(f"cloze: Prefect's server ended; starting it again (log: {self._log_path})")
            self._process = self._start()
