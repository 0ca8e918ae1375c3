"""Atomic writes, and digests of files and folders."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.common.errors import UserError

DIGEST_LENGTH = 16  # hexadecimal digits; 64 bits suffice for thousands of jobs


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a hidden file next to `path` to write to; it replaces `path` if the block succeeds."""
    partial = path.with_name(f".{path.name}.{_writer()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield an empty hidden directory next to `path` to fill; it replaces `path` if the block succeeds."""
    for left in path.parent.glob(f".{path.name}.*partial"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    partial = path.with_name(f".{path.name}.{_writer()}.partial")
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _writer() -> str:
    """Name this process; containers on different hosts often have the same process ids."""
    return f"{socket.gethostname()}.{os.getpid()}"


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` atomically: readers see the old file or the new one, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial, partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """Write `content` as JSON with sorted keys (equal content gives equal bytes), atomically."""
    write_bytes(path, (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read the JSON document in `path`."""
    return json.loads(path.read_text(encoding="utf-8"))


def load_json(path: Path, missing: str = "", remedy: str = "") -> Any:
    """Read the JSON document in a file that people may have edited or copied.

    Raises:
        UserError: the file is missing, or is not JSON; the message ends with `missing` or `remedy`.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing{missing}")
    try:
        return read_json(path)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}){remedy}") from None


def digest_of(content: Any) -> str:
    """Compute the digest of a JSON-like value; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]


def digest_of_file(path: Path) -> str:
    """Compute the SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_folder(folder: Path) -> str:
    """Compute the digest of a file, or of the relative names and bytes of all files below a folder."""
    if folder.is_file():
        return digest_of(digest_of_file(folder))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest_of([(path.relative_to(folder).as_posix(), digest_of_file(path)) for path in files])


def fraction_of(content: bytes) -> float:
    """Map content to a number in [0, 1) by its hash."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big") / 2**48
