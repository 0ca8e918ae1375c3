"""A mirror on a real S3 server behind a door that can fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from model.common.files import json_bytes
from model.engine.checkpoint import Checkpoints
from tasks.params.root import CheckpointSyncSettings
from tests.s3 import S3
from tests.tasks.fetch.servers import FailingDoor

NAME = "small-0123456789abcdef"
Save = Callable[[Path, int], Path]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    server = S3("mirrors")
    yield server
    server.close()


@pytest.fixture
def door(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FailingDoor]:
    """The server, emptied, behind a door that does not fail yet; the environment has the keys."""
    for key in s3.names():
        s3.client.delete_object(Bucket=s3.bucket, Key=key)
    door = FailingDoor(s3.host, s3.port, fail_every=0)
    for name, value in s3.environment(tmp_path, door.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr("random.random", lambda: 0.01)  # boto waits a random time up to seconds
    monkeypatch.setattr("tasks.pretrain.pretrain.EVERY_SECONDS", 0.02)
    monkeypatch.setattr("tasks.pretrain.pretrain.LONGEST_WAIT_SECONDS", 0.1)
    yield door
    door.close()


@pytest.fixture
def settings(door: FailingDoor) -> CheckpointSyncSettings:
    return CheckpointSyncSettings(url="s3://mirrors/runs", drain_seconds=20, patience_seconds=5)


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def save() -> Save:
    """Writes the checkpoint of a step as training does."""

    def save(directory: Path, step: int) -> Path:
        weights = {"w": torch.full((50_000,), float(step))}
        return Checkpoints(directory, 3).save(
            step, json_bytes({"step": step}), weights, {"exp_avg.w": weights["w"] / 2}
        )

    return save
