"""The local launcher: a training process on this machine, in a session of its own, that dies with the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model.common import process_guard
from model.common.files import write_json
from model.common.redaction import without_secrets
from model.common.run_dir import RunDir
from tasks.project.environment import training_environment

IDLE_SECONDS = 3.0
_kept_ends: list[int] = []  # the write ends of lifelines: open as long as this process lives


def lifeline_end() -> int:
    """The read end that children of this process get; its write end stays open until this process ends."""
    read_end, write_end = process_guard.open_lifeline()
    _kept_ends.append(write_end)
    return read_end


def start(
    command: Sequence[str], log_path: Path | None, with_secrets: bool = True, **popen: object
) -> subprocess.Popen[bytes]:
    """Start a guarded process with the tuned allocator; output is appended to `log_path`.

    Training asks no server: without secrets, no key of the environment is there to be lost.
    """
    read_end = lifeline_end()
    environment = training_environment({process_guard.VARIABLE: str(read_end)})
    if not with_secrets:
        environment = without_secrets(environment)
    with contextlib.ExitStack() as stack:
        if log_path is not None:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context(log_path.open("ab"))
            popen = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT, **popen}
        process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=(read_end,),
            start_new_session=True,
            **popen,  # type: ignore[call-overload]
        )
    os.close(read_end)
    return process


def module_command(module: str, *arguments: str, num_ranks: int = 1) -> list[str]:
    """`python -P -m module arguments`, under torchrun where there are several ranks.

    -P is Python's safe path: a stray model.py in the current folder does not shadow the package.
    """
    python = [sys.executable, "-P"]
    if num_ranks == 1:
        return [*python, "-m", module, *arguments]
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={num_ranks}",
        "--max-restarts=0",
    ]
    return [*python, "-m", "model.common.process_guard", *python, *torchrun, "-m", module, *arguments]


@dataclass
class LocalJob:
    """A running training process and its handle in `run_dir.handle`."""

    run_dir: RunDir
    process: subprocess.Popen[bytes]

    @classmethod
    def submit(cls, module: str, config_path: Path, run_dir: RunDir, num_ranks: int = 1) -> LocalJob:
        """Start `module` on `config_path`; output goes to `run_dir.log`."""
        process = start(module_command(module, str(config_path), num_ranks=num_ranks), run_dir.log, with_secrets=False)
        write_json(run_dir.handle, {"pid": process.pid, "started": time.time()})
        return cls(run_dir, process)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    def cancel(self, grace_seconds: float = 60.0) -> None:
        """Ask it to save and stop; kill the whole session if it has not ended in time, and at once where it has nothing
        to save: before its first step it may compile for a minute, and hears nothing."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        if self.run_dir.read_status().get("step", 0) <= self.run_dir.saved_step():
            grace_seconds = min(grace_seconds, IDLE_SECONDS)
        try:
            self.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the whole session at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def last_line(log_path: Path) -> str:
    """The last line of a log that says something."""
    if not log_path.exists():
        return ""
    lines = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
