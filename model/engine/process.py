"""Training processes: stop requests, and how a run ends for whoever waits for it (status.json and the exit code)."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType

from model.common.errors import Diverged, Paused, UserError
from model.common.status import Fault, Status

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")


class StopRequest:
    """Becomes true on SIGTERM or SIGINT, or after `after_seconds`."""

    def __init__(self, after_seconds: float | None = None) -> None:
        self._asked = False
        self._deadline = None if after_seconds is None else time.monotonic() + after_seconds
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def __call__(self) -> bool:
        return self._asked or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True


def run_guarded(action: Callable[[], None], status: Callable[[], Status | None]) -> int:
    """Run `action`, and turn exceptions into status.json, one line of output and an exit code.

    Args:
        action: loads and runs the job; it writes the status "done" itself.
        status: returns the status to write, or None on ranks that write none.

    Returns:
        0 when the job is done or paused, 2 for a user's mistake (one line on standard error), 1 for any other failure
        (with a traceback if its cause is unknown). Success is the result file alone.
    """
    try:
        action()
    except Paused as pause:
        if (paused := status()) is not None:
            print(pause, flush=True)
            paused.end("to be continued", str(pause))
    except UserError as mistake:
        _fail(status(), "user", str(mistake))
        return 2
    except Exception as error:
        fault = _fault_of(error)
        message = str(error).strip().partition("\n")[0]
        if fault == "lost":
            message = "a rank exited or timed out"
        elif fault == "memory":
            message = message or "out of memory"
        elif fault == "internal":
            message = f"{type(error).__name__}: {message}"
        if fault in ("internal", "lost"):
            traceback.print_exc()
        _fail(status(), fault, message)
        return 1
    return 0


def _fail(status: Status | None, fault: Fault, message: str) -> None:
    print(message, file=sys.stderr, flush=True)
    if status is not None:
        status.end("failed", message, fault)


def _fault_of(error: Exception) -> Fault:
    from model.engine.distributed import is_loss_of_a_rank

    if isinstance(error, Diverged):
        return error.fault
    if is_loss_of_a_rank(error):
        return "lost"
    return "memory" if isinstance(error, MemoryError) or any(s in str(error) for s in _OUT_OF_MEMORY) else "internal"
