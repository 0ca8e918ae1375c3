"""The thread that sends checkpoints while training goes on. Nothing that S3 does reaches training."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from model.common.checkpoint_files import DIGESTS
from tasks.pretrain.checkpoint_objects import MirroredJob, Refused, Silent, Vanished
from tasks.project.progress import echo

EVERY_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
_NICENESS = 15


class Sender(threading.Thread):
    """Watches a folder of checkpoints and sends the newest one, again and again.

    One that is being sent is sent to its end though newer ones come, so that a slow line brings some; after a failure
    the newest is taken.
    """

    def __init__(self, job: MirroredJob, directory: Path, num_kept: int) -> None:
        super().__init__(daemon=True, name="mirror")
        self._job, self._directory, self._num_kept = job, directory, num_kept
        self._ending = threading.Event()
        self._deadline = float("inf")
        self._sent = ""  # the newest that is there
        self.reason = ""
        """Why the last attempt failed; empty when it did not."""

    def run(self) -> None:
        """Send until told to end and all is there, or the time for that is over."""
        with contextlib.suppress(OSError, AttributeError):  # Linux: a thread has a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        failures = 0
        while time.monotonic() < self._deadline:
            newest = self._newest()
            if newest is None or newest.name == self._sent:
                if self._ending.wait(EVERY_SECONDS) and self._newest() == newest:
                    return
                continue
            failures = 0 if self._try(newest) else failures + 1
            if failures:
                self._wait(min(2.0 ** (failures - 1), LONGEST_WAIT_SECONDS))

    def drain(self, seconds: float) -> str:
        """Give the rest so much time; the name of a checkpoint that did not arrive, or nothing."""
        self._deadline = time.monotonic() + seconds
        self._ending.set()
        self.join(seconds)
        newest = self._newest()
        return newest.name if newest is not None and newest.name != self._sent else ""

    def _newest(self) -> Path | None:
        """The newest checkpoint here; a folder appears whole, under its name."""
        found = sorted(path for path in self._directory.glob("step-*") if (path / DIGESTS).is_file())
        return found[-1] if found else None

    def _try(self, path: Path) -> bool:
        try:
            if not self._job.has(path):
                self._job.send(path)
            self._sent = path.name
            self._job.keep(self._num_kept)
        except Vanished:
            return True
        except (Refused, Silent, OSError) as fault:
            reason = str(fault) if isinstance(fault, Refused | Silent) else type(fault).__name__
            if reason != self.reason:
                echo(f"cloze: mirror: {path.name} is not sent yet ({reason}); training goes on, it is tried again")
            self.reason = reason
            return False
        if self.reason:
            echo(f"cloze: mirror: {path.name} has arrived")
        self.reason = ""
        return True

    def _wait(self, seconds: float) -> None:
        """Wait for the next attempt; when the end has come, a second is enough."""
        if self._ending.wait(seconds):
            time.sleep(min(1.0, max(0.0, self._deadline - time.monotonic())))
