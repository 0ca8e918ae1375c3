"""Local launcher: starts a training process in a new session on this machine; the process ends with the launcher."""

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
_write_ends: list[int] = []  # stay open until this process ends


def start(
    command: Sequence[str], log_path: Path | None, with_secrets: bool = True, **popen: object
) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, with the tuned allocator.

    Args:
        command: program and arguments.
        log_path: file that output is appended to; None leaves output as `popen` says.
        with_secrets: False removes credentials from the environment. Training contacts no server and needs none.
        popen: further arguments of `subprocess.Popen`.
    """
    read_end, write_end = process_guard.open_guard_pipe()
    _write_ends.append(write_end)
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
    """Return the command `python -P -m module arguments`, under torchrun if there are several ranks.

    -P keeps a stray model.py in the current directory from shadowing the package.
    """
    python = [sys.executable, "-P"]
    if num_ranks == 1:
        return [*python, "-m", module, *arguments]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", "--max-restarts=0"]
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

    def cancel(self, grace_seconds: float = 60.0) -> None:
        """Ask the process to save and exit, and kill its session after `grace_seconds`.

        If it has nothing to save, the grace period is short: before its first step, a process may compile for a minute
        without handling signals.
        """
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        if self.run_dir.read_status().get("step", 0) <= self.run_dir.saved_step():
            grace_seconds = min(grace_seconds, IDLE_SECONDS)
        try:
            self.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the whole session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def last_line(log_path: Path) -> str:
    """Return the last line of a log that is not blank."""
    if not log_path.exists():
        return ""
    lines = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
