"""A Dask scheduler and workers on this machine, each a process of its own; addresses of the loopback are hosts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from model.common import files


class DaskHosts:
    """A scheduler and two workers with one thread. Processes are in `processes`, the scheduler first.

    Args:
        folder: where logs go, and the working directory.
        root: folder with the packages that workers import.
        hosts: addresses of the workers.
    """

    def __init__(self, folder: Path, root: Path, hosts: tuple[str, ...] = ("127.0.0.1", "127.0.0.1")) -> None:
        self._scheduler_file = folder / "scheduler.json"
        self._environment = {**os.environ, "PYTHONPATH": str(root), "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show")
        deadline = time.monotonic() + 60
        while not self._scheduler_file.exists():
            assert time.monotonic() < deadline, (folder / "0.log").read_text()
            time.sleep(0.1)
        for host in hosts:
            self.add_worker(host)

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        return str(files.read_json(self._scheduler_file)["address"])

    def add_worker(self, host: str = "127.0.0.1") -> subprocess.Popen[bytes]:
        """Start one more worker."""
        return self._start("dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", host)

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        place = ["--scheduler-file", str(self._scheduler_file)]
        command = [sys.executable, "-m", f"distributed.cli.{program}", *place, *arguments]
        with (self._folder / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(command, env=self._environment, cwd=self._folder, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def end(self) -> None:
        """Kill all processes."""
        for process in self.processes:
            process.kill()
            process.wait()
