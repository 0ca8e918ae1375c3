"""Work next to training: one task at a time in a thread of low priority."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable

_NICENESS = 15


def lower_priority() -> None:
    """Lower the priority of the calling thread. Only Linux has a priority for each thread; elsewhere, do nothing."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class BackgroundTask:
    """Runs one task at a time in a thread of low priority. There is no thread before the first task."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, task: Callable[[], object]) -> None:
        """Run `task` after the previous one has ended; if that one failed, raise its error instead."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(task,), daemon=True, name=self._name)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the task has ended, and raise what it raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, task: Callable[[], object]) -> None:
        lower_priority()
        try:
            task()
        except BaseException as error:
            self._error = error
