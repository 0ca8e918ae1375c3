"""Training processes: stop requests, and how a run ends for its launcher (status.json and the exit code)."""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from model.common.errors import Diverged, Paused, UserError
from model.common.files import FULL
from model.common.ownership import Superseded
from model.common.status import Fault, Status

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")


class StopRequest:
    """Becomes true on SIGTERM or SIGINT, or after a time."""

    def __init__(self) -> None:
        self._asked = False
        self._deadline = math.inf
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def __call__(self) -> bool:
        return self._asked or time.monotonic() >= self._deadline

    def after(self, seconds: float | None) -> None:
        """Become true `seconds` from now; None for never."""
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        # The request is repeated, and Python ends with the default handlers: the next signal would kill it at its exit.
        signal.signal(number, signal.SIG_IGN)


def run_guarded(
    load: Callable[[], Any], action: Callable[[Any, Status | None], None], status_path: Path | None = None
) -> int:
    """Run a job, and turn exceptions into status.json, one line of output and an exit code.

    Args:
        load: reads the job, which has a `run_dir`.
        action: runs it, and writes the status "done" itself. The status is None on ranks other than 0.
        status_path: the status file of a job that cannot be loaded; None for none.

    Returns:
        0 when the job is done or paused, 2 for a user's mistake (one line on standard error), and otherwise what
        `exit_code` returns (with a traceback if the cause is unknown). Success is the result file alone.
    """
    atexit.register(gc.freeze)  # the last collections of a process that imported torch take seconds and free nothing
    status = None if status_path is None else Status(status_path)
    fault: Fault
    try:
        job = load()
        status = Status.of_job(job.run_dir)
        action(job, status)
        return 0
    except Paused as pause:
        if status is not None:
            print(pause, flush=True)
            status.end("to be continued", str(pause))
        return 0
    except Superseded as reason:  # the files belong to somebody else now, the status too
        print(reason, flush=True)
        return 0
    except UserError as mistake:
        code, message, fault = 2, str(mistake), "user"
    except Exception as error:
        code, message, fault = exit_code(error), str(error).strip().partition("\n")[0], _fault_of(error)
        if fault == "lost":
            message = "a rank exited or timed out"
        elif fault == "memory":
            message = message or "out of memory"
        elif fault == "internal":
            message = f"{type(error).__name__}: {message}"
        if fault in ("internal", "lost"):
            traceback.print_exc()
    if status is not None:
        with contextlib.suppress(OSError):  # the disk may be full
            status.end("failed", message, fault)
    print(message, file=sys.stderr, flush=True)
    return code


def exit_code(error: BaseException) -> int:
    """Return the exit code after an exception: its number in `FULL` (such a process can write no status), else 1."""
    return error.errno if isinstance(error, OSError) and error.errno in FULL else 1


def _fault_of(error: Exception) -> Fault:
    from model.engine.distributed import is_loss_of_a_rank

    if isinstance(error, Diverged):
        return error.fault
    if is_loss_of_a_rank(error):
        return "lost"
    return "memory" if isinstance(error, MemoryError) or any(s in str(error) for s in _OUT_OF_MEMORY) else "internal"
