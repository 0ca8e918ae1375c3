"""The files of a checkpoint and their verification. Does not import torch, for the processes that copy checkpoints."""

from __future__ import annotations

from pathlib import Path

from model.common import files

CONTENT = ("model.safetensors", "optimizer.safetensors", "state.json")
DIGESTS = "digests.json"  # SHA-256 of the other files; written last, so it marks a complete folder


class Damaged(Exception):
    """A file of a checkpoint is missing or corrupt; the message names it."""


def folder_name(step: int) -> str:
    """Return the folder name of a step's checkpoint; names sort like steps."""
    return f"step-{step:08d}"


def check_files(path: Path) -> None:
    """Verify a checkpoint's files against their digests.

    Raises:
        Damaged: a file is missing or corrupt.
    """
    try:
        digests = files.read_json(path / DIGESTS)
        for name in CONTENT:
            if files.digest_of_file(path / name) != digests[name]:
                raise Damaged(f"checkpoint {path.name}: {name} does not match its digest")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"checkpoint {path.name}: {type(error).__name__}: {error}") from None
