"""The files of a checkpoint's folder, and whether they are what was written. No torch: whoever moves them asks."""

from __future__ import annotations

import json
from pathlib import Path

from model.common import files

CONTENT = ("model.safetensors", "optimizer.safetensors", "state.json")
DIGESTS = "digests.json"  # SHA-256 of the others; written, sent and fetched so that it never stands for half a folder


class Damaged(Exception):
    """A checkpoint is not what was written; the message names the file."""


def folder_name(step: int) -> str:
    """The name of the folder of a step's checkpoint; names sort as steps do."""
    return f"step-{step:08d}"


def check_files(path: Path) -> None:
    """Hold a checkpoint's files against their digests.

    Raises:
        Damaged: when a file is missing or is not what was written.
    """
    try:
        digests = json.loads((path / DIGESTS).read_text(encoding="utf-8"))
        for name in CONTENT:
            if files.digest_of_file(path / name) != digests[name]:
                raise Damaged(f"checkpoint {path.name}: {name} does not match its digest")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"checkpoint {path.name}: {type(error).__name__}: {error}") from None
