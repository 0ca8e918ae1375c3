"""Atomic writes, JSON from outside, and digests of files and folders."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from model.common.errors import UserError

MOST_NAME_BYTES = 255  # of a file or directory, on Linux and macOS
DIGEST_LENGTH = 16  # hexadecimal digits; 64 bits suffice for thousands of jobs
_MAX_NESTING = 100  # levels of JSON from outside; code that walks values may then recurse
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the errors of a write for which there is no room: on the disk, in the quota, or in the limit of a file."""


@contextlib.contextmanager
def named_if_full(path: Path) -> Iterator[None]:
    """Name `path` in an error of FULL; an error of a write names no file, and one of a partial file would not help."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and str(error.filename or ".partial").endswith(".partial"):
            error.filename = str(path)
            del error.filename2  # None would be shown
        raise


@contextlib.contextmanager
def atomic_file(path: Path, *, is_durable: bool = True) -> Iterator[Path]:
    """Yield a hidden file next to `path` to write to; it replaces `path` if the block succeeds.

    Args:
        is_durable: return only when the new file would survive a loss of power.
    """
    partial = path.with_name(f".{path.name}.{_writer()}.partial")
    try:
        with named_if_full(path):
            yield partial
            if is_durable:
                sync(partial)
            partial.replace(path)
            if is_durable:
                sync(path.parent)
    finally:
        with contextlib.suppress(OSError):  # it does not exist, or its name is too long
            partial.unlink()


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield an empty hidden directory next to `path` to fill; it replaces `path` if the block succeeds."""
    for left in path.parent.glob(f".{path.name}.*partial"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    partial = path.with_name(f".{path.name}.{_writer()}.partial")
    partial.mkdir(parents=True)
    try:
        with named_if_full(path):
            yield partial
            sync_tree(partial)
            shutil.rmtree(path, ignore_errors=True)
            partial.rename(path)
            sync(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sync(path: Path) -> None:
    """Write a file's content, or a directory's names, to the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems cannot sync a directory
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync a directory and everything below it."""
    for path in [*folder.rglob("*"), folder]:
        if not path.is_symlink():
            sync(path)


def _writer() -> str:
    """Name this process; containers on different hosts often have the same process ids."""
    return f"{socket.gethostname()}.{os.getpid()}"


def write_bytes(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Write `content` atomically: readers see the old file or the new one; if it is durable, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, is_durable=is_durable) as partial:
        partial.write_bytes(content)


def json_bytes(content: Any) -> bytes:
    """Encode `content` as a JSON document with sorted keys: equal content gives equal bytes."""
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def write_json(path: Path, content: Any) -> None:
    """Write `content` as `json_bytes` encodes it, atomically."""
    write_bytes(path, json_bytes(content))


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
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}){remedy}") from None


def parse_json(text: str) -> Any:
    """Parse JSON from outside.

    Raises:
        ValueError: the text is not JSON, has NaN or an infinity, more than 100 levels, or an integer that is too long.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ValueError("an integer has thousands of digits" if "digits" in str(error) else str(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(_MAX_NESTING):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [child for children in inner for child in children]
        if not level:
            return value
    raise ValueError("nested too deeply")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def open_file(path: Path, remedy: str = "") -> BinaryIO:
    """Open a regular file that the user names, for reading.

    Raises:
        UserError: it is missing, cannot be read, or is a directory, pipe or device, which might never end.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{path}: expected a file, found a directory")
        if not stat.S_ISREG(mode):
            raise UserError(f"{path}: not a regular file{remedy}")
        return path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file{remedy}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def is_inside(name: object) -> bool:
    """Check whether `name`, from a file, is a relative path that can exist and does not leave its directory.

    Links in the directory are allowed, because the hub's cache consists of links.
    """
    if not isinstance(name, str) or "\0" in name or has_long_name(name):
        return False
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def has_long_name(path: str) -> bool:
    """Check whether a name in a path is longer than that of a file or directory may be."""
    return any(len(part.encode(errors="replace")) > MOST_NAME_BYTES for part in path.split("/"))


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
