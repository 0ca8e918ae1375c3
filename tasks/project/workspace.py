"""The folder a run works in: one run at a time, outputs that appear whole, and room on the disk for them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import getpass
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from model.common.errors import UserError
from tasks.project.project import Project

LOCK_VARIABLE = "CLOZE_RUN_LOCK"
_RENAME_EXCHANGE = 2  # <linux/fs.h>
_AT_FDCWD = -100


class Busy(UserError):
    """Another run works in the folder."""


@contextlib.contextmanager
def run_lock(project: Project, door: str) -> Iterator[None]:
    """Hold the folder for one run; a child of the holder (a stage under `cloze repro`) passes freely.

    Raises:
        Busy: another run holds the folder; the line says which.
    """
    if os.environ.get(LOCK_VARIABLE) == str(project.root):
        yield
        return
    project.lock_path.parent.mkdir(parents=True, exist_ok=True)
    with project.lock_path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Busy(
                f"another run works in this folder ({file.read().strip() or 'just started'}); wait for it or stop it"
            ) from None
        file.truncate(0)
        file.write(f"{door}, process {os.getpid()}, since {time.strftime('%H:%M:%S')}")
        file.flush()
        os.environ[LOCK_VARIABLE] = str(project.root)
        try:
            yield
        finally:
            del os.environ[LOCK_VARIABLE]
            file.truncate(0)


@contextlib.contextmanager
def staging(project: Project, name: str) -> Iterator[Path]:
    """A fresh folder on the disk of build/ to write an output into; gone afterwards unless published."""
    shelf = project.runs / "staging"
    shelf.mkdir(parents=True, exist_ok=True)
    for left in shelf.glob(f"{name}-*"):  # of a run that was killed: the lock says that nobody writes it any more
        shutil.rmtree(left)
    folder = shelf / f"{name}-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(path: Path, target: Path) -> None:
    """Move a file or directory to `target` in one step, also from another disk: a reader, or a kill at any moment,
    sees the old output or the new one.

    If the file system cannot exchange directories, the old one is moved aside first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _move(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(f".{target.name}.partial")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy) if path.is_dir() else shutil.copyfile(path, copy)
        _move(copy, target)


def _move(path: Path, target: Path) -> None:
    if path.is_file():
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)
        return
    if target.is_file():
        target.unlink()
    if not target.exists():
        path.rename(target)
        return
    if not _exchange(path, target):
        aside = path.with_name(f"{path.name}.old")
        target.rename(aside)
        path.rename(target)
        aside.rename(path)
    shutil.rmtree(path)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically (Linux's renameat2); False where that is not to be had."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(code, os.strerror(code), str(other))


def require_space(folder: Path, num_bytes: int, what: str) -> None:
    """Refuse to start a long step that would fill the disk.

    Raises:
        UserError: less than `num_bytes` are free where `folder` lies.
    """
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise UserError(
            f"{what} needs about {num_bytes / 2**20:,.0f} MiB in {folder}, {free / 2**20:,.0f} MiB are free;"
            " free some space (`cloze gc` removes what nothing asks for)"
        )


def folder_bytes(folder: Path) -> int:
    """The bytes of all files below `folder`; 0 where it is missing."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0


def git_commit(project: Project) -> str:
    """The commit checked out in the project, with a + where tracked files differ; empty outside git."""
    import subprocess

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=project.root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    return commit + "+" if commit and git("status", "--porcelain", "--untracked-files=no") else commit


def write_record(path: Path, record: dict) -> None:
    """Who, when, where: a JSON record under build/runs/, never part of an output."""
    from model.common.files import write_json

    write_json(path, record | {"written": timestamp()})


def read_record(path: Path) -> dict:
    """A record as written, or an empty one."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return json.loads(path.read_text(encoding="utf-8"))
    return {}


def timestamp() -> str:
    """Now, as 2026-11-21T16:33:19+0000."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def user_name() -> str:
    """Who runs this."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user id
        return "unknown"
