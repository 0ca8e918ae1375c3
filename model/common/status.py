"""status.json: the progress of a training process."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from model.common.run_dir import RunDir
from model.common.state_files import write_state

State = Literal["running", "to be continued", "done", "failed"]
Fault = Literal["user", "non-finite", "hopeless", "memory", "lost", "internal"]
_SECONDS_BETWEEN = 0.5


def local_time() -> str:
    """Return the time for a line of a log: local, with milliseconds and the offset from UTC, as in ISO 8601."""
    return datetime.now().astimezone().isoformat(sep=" ", timespec="milliseconds")


class Status:
    """Writes `path` atomically, at most twice a second while training runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._step = 0
        self._num_steps = 0
        self._written = 0.0
        self._facts: dict[str, Any] = {}

    @classmethod
    def of_job(cls, run_dir: Path) -> Status | None:
        """Return the status of a job; None on ranks other than 0, which write no files."""
        return cls(RunDir(run_dir).status) if os.environ.get("RANK", "0") == "0" else None

    def running(self, step: int, num_steps: int) -> None:
        """Record that `step` of `num_steps` steps are complete."""
        self._step, self._num_steps = step, num_steps
        if time.monotonic() - self._written >= _SECONDS_BETWEEN:
            self._write("running")

    def note(self, **facts: Any) -> None:
        """Add facts that people want to see meanwhile, such as `loss`; they are written with the next status."""
        self._facts |= facts

    def end(self, state: State, message: str = "", fault: Fault | None = None) -> None:
        """Record the end of the run; `message` is one line."""
        self._write(state, message, fault)

    def _write(self, state: State, message: str = "", fault: Fault | None = None) -> None:
        self._written = time.monotonic()
        progress = {"step": self._step, "num_steps": self._num_steps, "time": time.time()}
        content = {**self._facts, "state": state, "message": message, "fault": fault, **progress}
        write_state(self._path, content, is_durable=False)
