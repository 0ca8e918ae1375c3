"""A job with its mirror: the newest checkpoint is fetched before it starts, and each new one is sent while it runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from model.common.checkpoint_files import Damaged, check_files
from model.common.errors import Paused, UserError
from tasks.params.checkpoint_sync import CheckpointSyncSettings
from tasks.pretrain.checkpoint_objects import MirroredJob, Refused, Silent
from tasks.pretrain.uploader import Sender
from tasks.project.progress import echo


@contextlib.contextmanager
def mirrored(
    settings: CheckpointSyncSettings | None, name: str, directory: Path, stop: threading.Event
) -> Iterator[None]:
    """Mirror the checkpoints in `directory` while the block runs; without settings, nothing happens.

    Args:
        settings: where to.
        name: the job's, with its digest: the folder on S3.
        directory: where training keeps its checkpoints.
        stop: set when the run was asked to stop.

    Raises:
        UserError: S3 refuses: no such bucket, no access, no credentials.
        Paused: S3 is silent, and there is no checkpoint here to go on from.
    """
    if settings is None:
        yield
        return
    job = MirroredJob(settings, name)
    restore(job, directory, settings.patience_seconds, stop)
    sender = Sender(job, directory, settings.num_kept)
    sender.start()
    try:
        yield
    finally:
        left = sender.drain(settings.stop_seconds if stop.is_set() else settings.drain_seconds)
        if left:
            why = f" ({sender.reason})" if sender.reason else ""
            echo(f"cloze: mirror: {left} did not arrive in time{why}; it is kept here, and the next run sends it")


def restore(job: MirroredJob, directory: Path, patience_seconds: float, stop: threading.Event) -> None:
    """Fetch the newest whole checkpoint, if it is newer than what is here; see `mirrored` for what it raises."""
    here = newest_whole(directory)
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            _fetch_newer(job, directory, here)
            return
        except Refused as fault:
            raise UserError(f"mirror: {fault}") from None
        except Silent as fault:
            if here:
                echo(f"cloze: mirror: {fault}; going on from {here}, which is here")
                return
            if time.monotonic() >= deadline or stop.is_set():
                raise Paused(
                    f"mirror: {fault}; there is no checkpoint here, and one may lie there: run again when it answers,"
                    " or take `mirror` out of params.yaml to start from the beginning"
                ) from None
        stop.wait(1.0)


def newest_whole(directory: Path) -> str:
    """The name of the newest checkpoint here that is whole, or nothing."""
    for path in sorted(directory.glob("step-*"), reverse=True):
        with contextlib.suppress(Damaged):
            check_files(path)
            return path.name
    return ""


def _fetch_newer(job: MirroredJob, directory: Path, here: str) -> None:
    steps = [step for step, whole in job.steps().items() if whole and step > here]
    for step in steps:
        try:
            job.fetch(step, directory)
        except Damaged as fault:
            then = "training starts over" if step == steps[-1] and not here else "the checkpoint before it is used"
            echo(f"cloze: mirror: {fault} (in {job.place}); refused, {then}")
            continue
        echo(f"cloze: mirror: {step} comes from {job.place}")
        return
