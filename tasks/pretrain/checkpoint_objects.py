"""A job's checkpoints on S3: listed, uploaded, downloaded and removed, whole ones only."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from model.common.checkpoint_files import CONTENT, DIGESTS, Damaged, check_files
from model.common.files import atomic_directory
from tasks.params.checkpoint_sync import CheckpointSyncSettings
from tasks.s3.client import S3Client, S3Refused

_STEP = re.compile(r"(step-\d{8,})/([^/]+)")


class Vanished(Exception):
    """Training removed a local checkpoint before it was opened: a newer one exists."""


class CheckpointBucket:
    """The checkpoints of one job, below settings.url/`name`. For one thread at a time.

    Every method raises S3Refused or S3Unavailable.
    """

    def __init__(self, settings: CheckpointSyncSettings, name: str) -> None:
        self.location = f"{settings.url.rstrip('/')}/{name}"
        # Few attempts: the uploader waits and tries again.
        self._client = S3Client(settings.endpoint_url, attempts=2, connect_timeout=5, read_timeout=30)

    def steps(self) -> dict[str, bool]:
        """Folder name → True if the checkpoint is whole, newest first."""
        found: dict[str, set[str]] = {}
        for entry in self._client.list(f"{self.location}/"):
            if match := _STEP.fullmatch(entry.location.removeprefix(f"{self.location}/")):
                found.setdefault(match[1], set()).add(match[2])
        return {step: {DIGESTS, *CONTENT} <= found[step] for step in sorted(found, reverse=True)}

    def has(self, path: Path) -> bool:
        """Check whether S3 holds exactly this checkpoint."""
        try:
            remote = self._client.read(self._file(path.name, DIGESTS))
            return bool(json.loads(remote) == json.loads((path / DIGESTS).read_bytes()))
        except (S3Refused, ValueError, FileNotFoundError):  # no such object, or a damaged one
            return False

    def send(self, path: Path) -> None:
        """Upload a checkpoint; DIGESTS is deleted first and written last, so an incomplete upload is never whole.

        Raises:
            Vanished: training has removed the checkpoint.
        """
        with contextlib.ExitStack() as opened:
            try:  # open files outlive their names: training may remove the checkpoint in the meantime
                streams = {name: opened.enter_context((path / name).open("rb")) for name in (*CONTENT, DIGESTS)}
            except FileNotFoundError:
                raise Vanished(path.name) from None
            self._client.delete(self._file(path.name, DIGESTS))
            for name, stream in streams.items():  # in this thread, which has a low priority
                self._client.upload(stream, self._file(path.name, name), use_threads=False)

    def keep(self, num_kept: int) -> None:
        """Remove all but the newest whole checkpoints, and incomplete ones that are older than those."""
        steps = self.steps()
        whole = [step for step in steps if steps[step]][:num_kept]
        for step in steps:
            if whole and step not in whole and step < whole[0]:
                for name in (DIGESTS, *CONTENT):  # in this order, a kill leaves no folder that looks whole
                    self._client.delete(self._file(step, name))

    def fetch(self, step: str, directory: Path) -> None:
        """Download a checkpoint into `directory`, whole or not at all.

        Raises:
            Damaged: the files differ from their digests.
        """
        with atomic_directory(directory / step) as partial:
            for name in (*CONTENT, DIGESTS):
                self._client.download(self._file(step, name), partial / name)
            try:
                check_files(partial)
            except Damaged as error:
                raise Damaged(str(error).replace(partial.name, step)) from None

    def _file(self, step: str, name: str) -> str:
        return f"{self.location}/{step}/{name}"
