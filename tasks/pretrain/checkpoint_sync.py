"""Checkpoint sync of one job: download the newest checkpoint before it starts, upload each new one while it runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from model.common.checkpoint_files import Damaged, check_files
from model.common.errors import Paused, UserError
from tasks.params.checkpoint_sync import CheckpointSyncSettings
from tasks.pretrain.checkpoint_objects import CheckpointBucket
from tasks.pretrain.uploader import Uploader
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
