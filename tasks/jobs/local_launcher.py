"""Local launcher: starts a training process in a new session on this machine; the process ends with the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
        environment = without_secrets(environment)
    with contextlib.ExitStack() as stack:
        if log_path is not None:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context(log_path.open("ab"))
            popen = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT, **popen}
        options: dict[str, Any] = {"env": environment, "pass_fds": (read_end,), "start_new_session": True, **popen}
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
