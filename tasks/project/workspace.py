"""The directory that a run works in: its lock, atomic publication of outputs, disk space, and records.

A run with other parameters works in a workspace: a git worktree that shares the DVC cache, as in `dvc exp run --temp`.
Its name ends with the id of the run, so the same command resumes an interrupted run.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import getpass
import itertools
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from model.common.errors import Paused, UserError
from model.common.files import named_if_full, sync, sync_tree
from model.common.redaction import redacted
from tasks.project import signals
from tasks.project.progress import echo
from tasks.project.project import Project
from tasks.project.stage_versions import VERSIONS

if TYPE_CHECKING:
    from dvc.config import Config

LOCK_VARIABLE = "CLOZE_RUN_LOCK"
_RENAME_EXCHANGE = 2  # <linux/fs.h>
_AT_FDCWD = -100
_DVC_LOCK = "dvc.lock"
_DVC_CONFIG = "DVC's configuration (.dvc/config, .dvc/config.local)"
_ID_LENGTH = 8
_LEAST_BYTES = 2**20  # of a disk that is not full
# https://USER@HOST/PATH.git, ssh://USER@HOST:PORT/PATH or USER@HOST:PATH
_REMOTE = re.compile(r"(?:(?:https?|ssh)://(?:[^@/]*@)?|[^@/:]+@)([^/:@]+)(?::\d+(?=/))?[/:](.+?)(?:\.git)?/?")
NAME_PATTERN = "[a-z0-9][a-z0-9_.-]{0,40}"
"""Names of runs."""
# Files that may differ from the checked-out commit
_COPIED = ("dvc.yaml", "data.dvc", ".dvc/config", ".dvc/config.local", ".dvcignore", VERSIONS)


class Busy(UserError):
    """Another run holds the directory."""


@contextlib.contextmanager
def run_lock(project: Project, command: str, wait_seconds: float = 0.0) -> Iterator[None]:
    """Lock the project directory for one run. Children of the holder, such as a stage under `cloze repro`, may enter.

    Args:
        wait_seconds: how long to wait for another run to end.

    Raises:
        Busy: another run holds the lock; the message names it.
        Paused: the process was asked to stop while it waited.
    """
    if os.environ.get(LOCK_VARIABLE) == str(project.root):
        yield
        return
    deadline = time.monotonic() + wait_seconds
    with contextlib.ExitStack() as stack:
        for attempt in itertools.count():
            try:
                stack.enter_context(_lock_now(project, command))
                break
            except Busy as busy:
                if time.monotonic() >= deadline:
                    raise
                if attempt == 0:
                    echo(f"{busy}; waiting up to {wait_seconds:,.0f} s")
            if signals.requested.wait(1.0):
                raise Paused("stopped")
        yield


@contextlib.contextmanager
def _lock_now(project: Project, command: str) -> Iterator[None]:
    project.lock_path.parent.mkdir(parents=True, exist_ok=True)
    with project.lock_path.open("a+", encoding="utf-8") as file, _opened(project.root) as root:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_directory(root)  # the lock if somebody deletes the file meanwhile
        except BlockingIOError:
            file.seek(0)
            raise Busy(
                f"another run uses this directory ({file.read().strip() or 'just started'}); wait for it or stop it"
            ) from None
        file.truncate(0)
        with contextlib.suppress(OSError):  # on a full disk, the lock holds all the same: `cloze gc` frees space
            os.write(file.fileno(), f"{command}, process {os.getpid()}, since {time.strftime('%H:%M:%S')}".encode())
        outer = os.environ.get(LOCK_VARIABLE)  # of the project, while one of its workspaces is locked, too
        os.environ[LOCK_VARIABLE] = str(project.root)
        try:
            yield
        finally:
            if outer is None:
                del os.environ[LOCK_VARIABLE]
            else:
                os.environ[LOCK_VARIABLE] = outer
            file.truncate(0)


_NO_DIRECTORY_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""From file systems that lock no directories: NFS locks only what is open for writing. The lock's file remains."""


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock_directory(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_LOCKS:
            raise


def is_locked(project: Project) -> bool:
    """Check whether a run uses the project directory now."""
    import psutil

    # Trying the lock would refuse a run that starts at this moment.
    holder = re.search(r"process (\d+)", project.lock_path.read_text()) if project.lock_path.exists() else None
    return holder is not None and psutil.pid_exists(int(holder[1]))


@contextlib.contextmanager
def staging(project: Project, name: str) -> Iterator[Path]:
    """Create a directory on the file system of build/ to write an output into; it is removed unless published."""
    parent = project.runs / "staging"
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{name}-*"):  # of a killed run; the lock ensures that no other process writes it
        shutil.rmtree(left)
    folder = parent / f"{name}-{os.getpid()}"
    folder.mkdir()
    try:
        with named_if_full(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def follow(folder: Path) -> Iterator[Callable[[Path], bool]]:
    """Yield a function that returns whether this directory is at a path, and not another one of its name."""
    descriptor = os.open(folder, os.O_RDONLY)  # while it is open, no other directory gets its inode

    def is_at(path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), path.stat())
        except OSError:
            return False

    try:
        yield is_at
    finally:
        os.close(descriptor)


def publish(path: Path, target: Path) -> None:
    """Move a file or directory to `target` atomically, also from another disk.

    Readers see either the old or the new output, even after a kill or a loss of power at any moment.

    If the file system cannot exchange directories, the old one is moved aside first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    sync_tree(path)
    try:
        _move(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(f".{target.name}.partial")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy) if path.is_dir() else shutil.copyfile(path, copy)
        sync_tree(copy)
        _move(copy, target)
    sync(target.parent)


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
    """Exchange two directories atomically with renameat2; False if it is not available."""
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
    """Check that the disk has room for a long step.

    Raises:
        UserError: fewer than `num_bytes` bytes are free on the disk of `folder`.
    """
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise UserError(
            f"{what} needs about {num_bytes / 2**20:,.0f} MiB in {folder}, but only {free / 2**20:,.0f} MiB are free;"
            " free some space (`cloze gc` deletes unused files)"
        )


def refuse_full(folder: Path) -> None:
    """Check that a server can write to its files in `folder`, after an error that does not say why.

    Raises:
        UserError: the disk has no space or no inodes left, or a file has reached the limit of the size of files.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    for path in folder.iterdir() if limit != resource.RLIM_INFINITY else ():
        if path.stat().st_size >= limit - _LEAST_BYTES:
            raise UserError(f"{path}: File too large; raise the limit of the size of files (`ulimit -f`)")
    disk = os.statvfs(folder)
    for what, is_full in (
        ("space", disk.f_bavail * disk.f_frsize < _LEAST_BYTES),
        ("inodes", disk.f_files and not disk.f_favail),  # some file systems do not count inodes
    ):
        if is_full:
            raise UserError(f"{folder}: no {what} left on its disk; free some, for example with `cloze gc`")


def folder_bytes(folder: Path) -> int:
    """Total size of all files below `folder`; 0 if it does not exist."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0


def git_commit(project: Project) -> str:
    """Hash of the checked-out commit, with a + if tracked files are modified; empty outside git."""

    commit = git_says(project, "rev-parse", "HEAD")
    return commit + "+" if commit and git_says(project, "status", "--porcelain", "--untracked-files=no") else commit


def commit_page(project: Project) -> str:
    """URL of the checked-out commit on the host of the remote `origin`; empty if it has none."""
    found = _REMOTE.fullmatch(git_says(project, "remote", "get-url", "origin"))
    commit = git_says(project, "rev-parse", "HEAD") if found else ""
    return f"https://{found[1]}/{found[2]}/commit/{commit}" if found and commit else ""


def git_says(project: Project, *arguments: str) -> str:
    """Return the output of a git command; empty if it fails."""
    done = subprocess.run(["git", *arguments], cwd=project.root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def timestamp() -> str:
    """Current time, such as 2026-11-21T16:33:19+0000."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for the user id
        return "unknown"


def run_label(key: str, name: str = "") -> str:
    """Return what a pipeline run is called everywhere: NAME-ID, where the id is the first 8 characters of its key."""
    return f"{name or 'pipeline'}-{run_id(key)}"


def run_id(key: str) -> str:
    return key[:_ID_LENGTH]


def checked_name(name: str) -> str:
    """Check that `name` can name a run and its files, and return it.

    Raises:
        UserError: it cannot.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise UserError(f"name: '{name}': expected at most 41 lowercase letters, digits, '-', '_' and '.'")
    return name


def name_of(params_path: Path) -> str:
    """Return the name of a run with this parameter file: its stem, with what a name cannot contain replaced."""
    return re.sub(r"[^a-z0-9_.-]+", "-", params_path.stem.lower()).strip("-_.")[:41] or "params"


def find_workspaces(project: Project, what: str) -> list[Path]:
    """Find the workspaces of a run's name, id or label, newest first."""
    found = [
        path
        for path in project.workspaces.glob("*-*")
        if what in (path.name, path.name[: -_ID_LENGTH - 1], path.name[-_ID_LENGTH:])
    ]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def workspace_of(project: Project, params_path: Path, key: str, name: str = "") -> Path:
    """Return the workspace of a run, which may not exist yet; see `prepare`."""
    existing = find_workspaces(project, run_id(key))
    return existing[0] if existing else project.workspaces / run_label(key, name or name_of(params_path))


def prepare(project: Project, params_path: Path, key: str, name: str = "") -> tuple[Path, str]:
    """Create or update the workspace for `params_path`, and return its path and the run's name.

    Args:
        key: key of the pipeline run (`tasks.tracking.tracking.pipeline_key`); a run has one workspace.
        name: name of the run, if it has no workspace yet; defaults to the name of the file.

    Raises:
        UserError: the project is not a git clone with a commit, or git or DVC fails.
    """
    reconnect(project)
    workspace = workspace_of(project, params_path, key, name)
    if not (workspace / ".git").exists():
        shutil.rmtree(workspace, ignore_errors=True)
        workspace.parent.mkdir(parents=True, exist_ok=True)
        _git(project.root, "worktree", "prune")
        _git(project.root, "worktree", "add", "--detach", "--force", str(workspace), "HEAD")
        if (project.root / _DVC_LOCK).exists():  # so that finished stages come from the cache
            shutil.copyfile(project.root / _DVC_LOCK, workspace / _DVC_LOCK)
    for name in _COPIED:
        source, target = project.root / name, workspace / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            if target.name == "config.local":  # it may contain the keys of a remote
                target.chmod(0o600)
    shutil.copyfile(params_path, workspace / "params.yaml")
    _share_cache(project, workspace)
    return workspace, workspace.name[: -_ID_LENGTH - 1]


def reconnect(project: Project) -> None:
    """Connect the workspaces of a moved or copied project with its git directory; git records absolute paths.

    `git worktree repair` would also change the workspaces of the project that this one is a copy of.
    """
    git_dir = git_says(project, "rev-parse", "--path-format=absolute", "--git-common-dir")
    for link in project.workspaces.glob("*/.git") if git_dir else ():
        known = Path(git_dir, "worktrees", Path(link.read_text().strip()).name)
        if known.is_dir() and link.read_text() != f"gitdir: {known}\n":
            link.write_text(f"gitdir: {known}\n")
            (known / "gitdir").write_text(f"{link}\n")


def dvc_config(root: Path) -> Config:
    """Read DVC's configuration of the project in `root`.

    Raises:
        UserError: DVC cannot read it, or cannot use the path of its cache.
    """
    from dvc.config import Config, ConfigError

    try:
        config = Config(dvc_dir=str(root / ".dvc"))
    except ConfigError as error:
        reason = redacted(" ".join(str(error).split()))[:300]
        raise UserError(f"{_DVC_CONFIG}: {reason}") from None
    cache = str(config.get("cache", {}).get("dir", ""))
    if re.search("[{}$]", cache):  # DVC formats messages with this path, and replaces variables in it
        raise UserError(f"{_DVC_CONFIG}: cache.dir {cache!r} must not contain braces or a dollar sign")
    return config


def _share_cache(project: Project, workspace: Path) -> None:
    """Let DVC in the workspace use the project's cache, and check out its data."""
    from dvc.config_schema import RelPath  # written relative to the file: DVC cannot write a path that is not ASCII

    local = dvc_config(project.root)
    cache = local.get("cache", {}).get("dir") or str(project.root / ".dvc" / "cache")
    with dvc_config(workspace).edit("local") as settings:
        settings.setdefault("cache", {})["dir"] = RelPath(cache)
        # relative URLs of remotes are relative to the project's configuration
        remotes = settings.setdefault("remote", {})
        for name, remote in local.get("remote", {}).items():
            if "://" not in remote.get("url", "://") and not Path(remote["url"]).is_absolute():
                remotes.setdefault(name, {})["url"] = RelPath((project.root / ".dvc" / remote["url"]).resolve())
    from dvc.repo import Repo

    with Repo(str(project.root)) as repo:
        try:
            repo.commit("data.dvc", force=False)  # so that the cache has the pinned data
        except Exception as error:
            raise UserError(f"data.dvc: {' '.join(str(error).split())}") from error
    checkout = [sys.executable, "-m", "dvc", "checkout", "data.dvc"]
    done = subprocess.run(checkout, cwd=workspace, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"the workspace's data: {' '.join(done.stderr.split())}")


def _git(folder: Path, *command: str) -> None:
    done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(
            f"git {' '.join(command[:2])}: {' '.join(done.stderr.split())}; is this a git repository with a commit?"
        )
