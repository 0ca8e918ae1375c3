"""Local launcher: training processes and warm workers in new sessions on this machine, which end with the launcher.

Importing torch takes longer than many jobs, so those of one rank run in forks of a server that has imported it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.common import process_guard
from model.common.redaction import without_secrets
from tasks.project.environment import training_environment

_write_ends: list[int] = []  # stay open until this process ends


def start(
    command: Sequence[str], log_path: Path | None, with_secrets: bool = True, **popen: Any
) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, with the tuned allocator.

    Args:
        log_path: file that output is appended to; None leaves output as `popen` says.
        with_secrets: False removes credentials from the environment. Training contacts no server and needs none.
        popen: further arguments of `subprocess.Popen`.
    """
    read_end, write_end = process_guard.open_guard_pipe()
    _write_ends.append(write_end)
    environment = training_environment({process_guard.VARIABLE: str(read_end)})
    if not with_secrets:
        environment = without_secrets(environment) | {"PYTHONSAFEPATH": "1"}  # torchrun starts ranks without -P
    with contextlib.ExitStack() as stack:
        if log_path is not None:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context(log_path.open("ab"))
            popen = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT, **popen}
        popen["pass_fds"] = (read_end, *popen.get("pass_fds", ()))
        options: dict[str, Any] = {"env": environment, "start_new_session": True, **popen}
        process = subprocess.Popen(command, **options)
    os.close(read_end)
    return process


def module_command(module: str, *arguments: str, num_ranks: int = 1) -> list[str]:
    """Return the command `python -P -m module arguments`, under torchrun if there are several ranks.

    -P keeps a stray model.py in the current directory from shadowing the package.
    """
    python = [sys.executable, "-P"]
    if num_ranks == 1:
        return [*python, "-m", module, *arguments]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", "--max-restarts=0"]
    return [*python, "-m", "model.common.process_guard", *python, *torchrun, "-m", module, *arguments]


def end(process: subprocess.Popen[bytes], grace_seconds: float) -> int:
    """Ask a process to end, kill its whole session after `grace_seconds`, and return the exit code."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def last_line(log_path: Path) -> str:
    """Return the last line of a log that is not blank."""
    if not log_path.exists():
        return ""
    lines = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


@dataclass(frozen=True)
class JobEnd:
    """How a job's process ended: exit code, signal if one ended it, and a fault that it could not report itself."""

    code: int
    signal: int | None = None
    fault: Literal["", "lost", "memory", "node"] = ""
    """lost: its fork server was lost; memory: the kernel killed it because memory ran out; node: its node was lost."""


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """Runs training jobs of one rank in forked processes; `run` blocks until the job's process has ended."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[subprocess.Popen[bytes], queue.SimpleQueue[JobEnd]]] = {}
        self._server: subprocess.Popen[bytes] | None = None

    def warm_up(self) -> None:
        """Start the fork server in advance, so that it imports torch in the background."""
        with self._lock:
            self._serve()

    def run(
        self,
        digest: str,
        job_path: Path,
        stop: threading.Event,
        device: str | None = None,
        grace_seconds: Callable[[], float] = lambda: 5.0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> JobEnd:
        """Run one job and return how it ended.

        Args:
            job_path: JOB.json or RUN.json of the job.
            stop: when set, the job is asked to save and exit.
            device: GPU to use; None uses all that are visible, or the CPU.
            grace_seconds: called when the job is asked to stop; returns after how many seconds it is killed.
            meanwhile: called five times a second.
        """
        try:
            if stop.is_set():
                return JobEnd(code=0)
            mailbox: queue.SimpleQueue[JobEnd] = queue.SimpleQueue()
            request: dict[str, Any] = {"job": str(job_path)}
            if device is not None:
                request["environment"] = {"CUDA_VISIBLE_DEVICES": device}
            with self._lock:
                server = self._serve()
                self._waiting[digest] = server, mailbox
            self._send(server, request)
            asked = False
            while True:
                with contextlib.suppress(queue.Empty):
                    return mailbox.get(timeout=0.2)
                meanwhile()
                if stop.is_set() and not asked:
                    asked = True
                    self._send(server, {"cancel": digest, "grace": grace_seconds()})
        finally:
            with self._lock:
                self._waiting.pop(digest, None)

    def __exit__(self, *_: object) -> None:
        """Stop the fork server and any jobs that still run."""
        with self._lock:
            server, self._server = self._server, None
        if server is None:
            return
        server.terminate()  # it asks the jobs to stop; while it still imports modules, it ends at once
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def _serve(self) -> subprocess.Popen[bytes]:
        """Return the running server, or start one. Call with the lock held."""
        if self._server is None or self._server.poll() is not None:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            with self._log_path.open("ab") as log:
                self._server = start(
                    module_command("model.fork_server"),
                    None,
                    with_secrets=False,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            threading.Thread(target=self._listen, args=(self._server,), daemon=True, name="pool").start()
        return self._server

    def _deliver(self, server: subprocess.Popen[bytes], end: JobEnd, digest: str | None = None) -> None:
        """Tell those who wait for this server (and for `digest`, if one is given); later jobs run on its successor."""
        with self._lock:
            waiting = [box for name, (its, box) in self._waiting.items() if its is server and digest in (None, name)]
        for mailbox in waiting:
            mailbox.put(end)

    def _send(self, server: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
        assert server.stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError):  # _listen reports a dead server
            server.stdin.write((json.dumps(request) + "\n").encode())
            server.stdin.flush()

    def _listen(self, server: subprocess.Popen[bytes]) -> None:
        assert server.stdout is not None
        for line in server.stdout:
            event = json.loads(line)
            if "ended" in event:
                self._deliver(server, JobEnd(event.get("code") or 0, event.get("signal")), event["ended"])
            elif "refused" in event:  # unreadable JOB.json; the log says why
                digest = Path(event["refused"].get("job", "")).parent.name.rpartition("-")[2]
                self._deliver(server, JobEnd(code=1), digest)
        server.wait()  # so that `_serve` starts another one for the jobs that are told now
        self._deliver(server, JobEnd(code=1, fault="lost"))


_pools: list[WorkerPool] = []


@contextlib.contextmanager
def worker_pool(folder: Path) -> Iterator[WorkerPool]:
    """Provide a pool with its log in `folder`: that of the enclosing block of this process, or else a new one."""
    if _pools:
        yield _pools[-1]
        return
    with WorkerPool(folder / "workers.log") as pool:
        _pools.append(pool)
        try:
            yield pool
        finally:
            _pools.pop()
