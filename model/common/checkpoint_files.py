"""The files of a checkpoint and their verification. Does not import torch, for the processes that copy checkpoints."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from model.common import files

KINDS = ("model", "optimizer")  # of tensors; each kind has a file, or a file for each part
STATE = "state.json"
DIGESTS = "digests.json"  # SHA-256 of the other files; written last, so it marks a complete folder
FILE = re.compile(rf"(?:{'|'.join(KINDS)})(?:-\d{{5}}-of-(\d{{5}}))?\.safetensors|{STATE}|{DIGESTS}")
"""Matches the names of all files of a checkpoint; the group is the number of parts."""


class Damaged(Exception):
    """A file of a checkpoint is missing or corrupt; the message names it."""


def folder_name(step: int) -> str:
    """Return the folder name of a step's checkpoint; names sort like steps."""
    return f"step-{step:08d}"


def tensor_file(kind: str, part: int = 0, num_parts: int = 1) -> str:
    """Return the name of the file of a kind of tensors, or of one of its parts (counted from 0)."""
    return f"{kind}{f'-{part + 1:05d}-of-{num_parts:05d}' if num_parts > 1 else ''}.safetensors"


def content_of(names: Collection[str]) -> list[str]:
    """List the files of a complete checkpoint, without DIGESTS, among `names`; empty if one of them is missing."""
    found = [FILE.fullmatch(name) for name in names]
    num_parts = max((int(one[1]) for one in found if one and one[1]), default=1)
    content = [*(tensor_file(kind, part, num_parts) for kind in KINDS for part in range(num_parts)), STATE]
    return content if set(content) <= set(names) else []


def check_files(path: Path) -> list[str]:
    """Verify a checkpoint's files against their digests, and return their names.

    Raises:
        Damaged: a file is missing or corrupt.
    """
    try:
        digests = files.read_json(path / DIGESTS)
        content = content_of(digests)
        if not content:
            raise Damaged(f"checkpoint {path.name}: {DIGESTS} does not list all files")
        for name in content:
            if files.digest_of_file(path / name) != digests[name]:
                raise Damaged(f"checkpoint {path.name}: {name} does not match its digest")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"checkpoint {path.name}: {type(error).__name__}: {error}") from None
    return content
