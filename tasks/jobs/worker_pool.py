"""Warm workers for fine-tuning: a fork server that has imported torch.

Importing torch takes longer than many fine-tuning jobs; forking a process that has imported it takes milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.jobs.local_launcher import module_command, start


@dataclass(frozen=True)
class JobEnd:
    """How a job's process ended: exit code, signal if one ended it, and whether its fork server was lost."""

    code: int
    signal: int | None = None
    lost: bool = False


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """Runs fine-tuning jobs in forked processes; `run` blocks until the job's process has ended."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[subprocess.Popen[bytes], queue.SimpleQueue[JobEnd]]] = {}
        self._server: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(self) -> None:
        """Start the fork server in advance, so that it imports torch in the background."""
        with self._lock:
            self._serve()

    def run(self, digest: str, job_path: Path, stop: threading.Event, device: str | None = None) -> JobEnd:
        """Run one job and return how it ended.

        Args:
            job_path: JOB.json of the job.
            stop: when set, the job is asked to save and exit.
            device: GPU to use; None uses all that are visible, or the CPU.
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
                if stop.is_set() and not asked:
                    asked = True
                    self._send(server, {"cancel": digest})
        finally:
            with self._lock:
                self._waiting.pop(digest, None)

    def close(self) -> None:
        """Stop the fork server and any jobs that still run."""
        with self._lock:
            server, self._server = self._server, None
        if server is None:
            return
        if server.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                server.stdin.close()
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
                    module_command("model.finetune.fork_server"),
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
        self._deliver(server, JobEnd(code=1, lost=True))
