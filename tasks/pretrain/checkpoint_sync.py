"""Checkpoint sync of one job: download the newest checkpoint before it starts, upload each new one while it runs.

A background thread uploads; S3 errors never reach training.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from model.common.checkpoint_files import DIGESTS, Damaged, check_files
from model.common.errors import Paused, UserError
from tasks.params.checkpoint_sync import CheckpointSyncSettings
from tasks.pretrain.checkpoint_objects import CheckpointBucket, Vanished
from tasks.project.progress import echo
from tasks.s3.client import S3Refused, S3Unavailable


@contextlib.contextmanager
def mirrored(
    settings: CheckpointSyncSettings | None, name: str, directory: Path, stop: threading.Event
) -> Iterator[None]:
    """Sync the checkpoints in `directory` with S3 while the block runs; without settings, do nothing.

    Args:
        settings: the mirror.
        name: name of the job with its digest, used as the folder on S3.
        directory: checkpoint directory of the training run.
        stop: set when the run was asked to stop.

    Raises:
        UserError: S3 refuses the request: no such bucket, no access, no credentials.
        Paused: S3 does not respond, and there is no local checkpoint to resume from.
    """
    if settings is None:
        yield
        return
    job = CheckpointBucket(settings, name)
    restore(job, directory, settings.patience_seconds, stop)
    uploader = Uploader(job, directory, settings.num_kept)
    uploader.start()
    try:
        yield
    finally:
        left = uploader.drain(settings.stop_seconds if stop.is_set() else settings.drain_seconds)
        if left:
            why = f" ({uploader.reason})" if uploader.reason else ""
            echo(
                f"cloze: mirror: {left} was not uploaded in time{why}; it is kept locally, and the next run uploads it"
            )


def restore(job: CheckpointBucket, directory: Path, patience_seconds: float, stop: threading.Event) -> None:
    """Download the newest whole checkpoint, if it is newer than the local one; raises the errors of `mirrored`."""
    local = newest_whole(directory)
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            _fetch_newer(job, directory, local)
            return
        except S3Refused as fault:
            raise UserError(f"mirror: {fault}") from None
        except S3Unavailable as fault:
            if local:
                echo(f"cloze: mirror: {fault}; resuming from the local checkpoint {local}")
                return
            if time.monotonic() >= deadline or stop.is_set():
                raise Paused(
                    f"mirror: {fault}; there is no local checkpoint, but S3 may hold one: run again when S3 responds,"
                    " or remove `mirror` from params.yaml to start from the beginning"
                ) from None
        stop.wait(1.0)


def newest_whole(directory: Path) -> str:
    """Name of the newest whole checkpoint in `directory`, or an empty string."""
    for path in sorted(directory.glob("step-*"), reverse=True):
        with contextlib.suppress(Damaged):
            check_files(path)
            return path.name
    return ""


def _fetch_newer(job: CheckpointBucket, directory: Path, local: str) -> None:
    steps = [step for step, whole in job.steps().items() if whole and step > local]
    for step in steps:
        try:
            job.fetch(step, directory)
        except Damaged as fault:
            then = (
                "training starts from the beginning"
                if step == steps[-1] and not local
                else "trying the previous checkpoint"
            )
            echo(f"cloze: mirror: {fault} (in {job.location}); skipped, {then}")
            continue
        echo(f"cloze: mirror: downloaded {step} from {job.location}")
        return


EVERY_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
_NICENESS = 15


class Uploader(threading.Thread):
    """Watches a checkpoint directory and uploads the newest checkpoint.

    An upload in progress is completed even if newer checkpoints appear, so a slow connection uploads some of them;
    after a failure, the newest checkpoint is next.
    """

    def __init__(self, job: CheckpointBucket, directory: Path, num_kept: int) -> None:
        super().__init__(daemon=True, name="mirror")
        self._job, self._directory, self._num_kept = job, directory, num_kept
        self._ending = threading.Event()
        self._deadline = float("inf")
        self._sent = ""  # the newest checkpoint on S3
        self.reason = ""
        """Reason why the last attempt failed; empty after a success."""

    def run(self) -> None:
        """Upload until `drain` was called and everything is uploaded, or its time is over."""
        with contextlib.suppress(OSError, AttributeError):  # on Linux, each thread has its own priority
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
        """Finish within `seconds`; the name of a checkpoint that was not uploaded, or an empty string."""
        self._deadline = time.monotonic() + seconds
        self._ending.set()
        self.join(seconds)
        newest = self._newest()
        return newest.name if newest is not None and newest.name != self._sent else ""

    def _newest(self) -> Path | None:
        """Newest checkpoint in the directory; training renames complete checkpoints into place."""
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
        except (S3Refused, S3Unavailable, OSError) as fault:
            reason = str(fault) if isinstance(fault, S3Refused | S3Unavailable) else type(fault).__name__
            if reason != self.reason:
                echo(f"cloze: mirror: {path.name} is not uploaded yet ({reason}); training continues, retrying")
            self.reason = reason
            return False
        if self.reason:
            echo(f"cloze: mirror: {path.name} is uploaded")
        self.reason = ""
        return True

    def _wait(self, seconds: float) -> None:
        """Wait for the next attempt, for at most a second once `drain` was called."""
        if self._ending.wait(seconds):
            time.sleep(min(1.0, max(0.0, self._deadline - time.monotonic())))
