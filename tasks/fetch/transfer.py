"""What every door shares: waiting and trying again, files that are whole or hidden, and what was fetched."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from model.common.errors import Paused, UserError
from model.common.files import write_bytes
from tasks.project import signals

Report = Callable[[float, float, str], None]  # bytes done, bytes to do (0: unknown), a short text
BLOCK_BYTES = 1 << 20
_LONGEST_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class FetchedFile:
    """One file as it came."""

    bytes: int
    sha256: str
    url: str
    """Where it is from; without what may be secret."""
    checked: str
    """What its bytes were held against: sha256, sha1, etag, crc32, git, or size where the server keeps no checksum."""
    etag: str = ""
    """What the server calls this version of the file, where it changes."""


@dataclass
class StagingArea:
    """The folder in which one source is gathered, over several runs where need be: build/runs/fetch/<source>.

    `whole` holds files that are complete and checked, `parts` what is on its way.
    """

    folder: Path
    files: dict[str, FetchedFile] = field(default_factory=dict)
    """Of the files in `whole`, by their relative names."""

    @classmethod
    def open(cls, folder: Path) -> StagingArea:
        """The staging with what a former run has left in it."""
        staging = cls(folder)
        staging.parts.mkdir(parents=True, exist_ok=True)
        staging.whole.mkdir(parents=True, exist_ok=True)
        if staging._ledger.exists():
            lines = staging._ledger.read_text(encoding="utf-8").split("\n")[:-1]  # a torn last line is left out
            rows = {name: FetchedFile(**row) for name, row in map(json.loads, lines)}
            staging.files = {name: row for name, row in rows.items() if _has_size(staging.whole / name, row.bytes)}
        return staging

    @property
    def whole(self) -> Path:
        """Complete, checked files under their names."""
        return self.folder / "whole"

    @property
    def parts(self) -> Path:
        """Unfinished files."""
        return self.folder / "parts"

    @property
    def _ledger(self) -> Path:
        return self.folder / "rows.jsonl"

    def part(self, name: str) -> Path:
        """Where the file `name` grows."""
        return self.parts / hashlib.sha256(name.encode()).hexdigest()[:32]

    def keep(self, name: str, path: Path, row: FetchedFile) -> None:
        """Take `path`, complete and checked, under its name."""
        with path.open("rb") as file:
            os.fsync(file.fileno())
        target = self.whole / name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
        self.files[name] = row
        with self._ledger.open("a", encoding="utf-8") as ledger:
            ledger.write(json.dumps([name, asdict(row)]) + "\n")

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove files that the source no longer has, or has in another version."""
        asked = set(names)
        for path in [path for path in self.whole.rglob("*") if path.is_file()]:
            if path.relative_to(self.whole).as_posix() not in asked:
                path.unlink()
        self.files = {name: row for name, row in self.files.items() if name in asked}
        lines = [json.dumps([name, asdict(row)]) + "\n" for name, row in self.files.items()]
        write_bytes(self._ledger, "".join(lines).encode())

    def leave(self) -> None:
        """Remove the staging unless it holds something that is worth keeping for the next time."""
        if not any(path.is_file() and path.stat().st_size for path in self.folder.rglob("*")):
            self.close()

    def close(self) -> None:
        """Remove the staging."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class Fetched:
    """A source that lies whole in its staging."""

    rows: dict[str, FetchedFile]
    is_file: bool
    """Whether it is one file (under whatever name) rather than a folder."""
    revision: str = ""
    """The commit, where there is one."""


class Gone(Paused):
    """A server that failed too often in a row; what it gave is kept, and the next `cloze fetch` goes on there."""


class Attempts:
    """Counts the failures in a row of one transfer, and waits after each, twice as long as before."""

    def __init__(self, what: str, attempts: int, wait_seconds: float) -> None:
        self._what = what
        self._allowed = attempts
        self._first_wait = wait_seconds
        self._failed = 0
        self._furthest = 0

    def progress(self, reached: int) -> None:
        """So many bytes are there: if that is more than ever before, failures are counted anew."""
        if reached > self._furthest:
            self._furthest = reached
            self._failed = 0

    def succeeded(self) -> None:
        """A whole call went well: failures are counted anew."""
        self._failed = 0

    def failed(self, reason: str, wait_seconds: float = 0.0) -> None:
        """Wait for the next attempt, at least as long as the server asks.

        Raises:
            Gone: there is none.
            Paused: the run was asked to stop.
        """
        self._failed += 1
        if self._failed >= self._allowed:
            raise Gone(f"{self._what}: {reason}, again and again; what has come is kept")
        wait = max(self._first_wait * 2 ** (self._failed - 1), wait_seconds)
        signals.requested.wait(min(wait, _LONGEST_WAIT_SECONDS))
        check_stop()


def check_stop() -> None:
    """End here if the run was asked to stop.

    Raises:
        Paused: it was.
    """
    if signals.requested.is_set():
        raise Paused("stopped")


def hashes(path: Path, *names: str, report: Report | None = None) -> dict[str, str]:
    """Digests of a file, by hashlib's names, in one reading; always with sha256."""
    found = {name: hashlib.new(name, usedforsecurity=False) for name in {"sha256", *names}}
    done, size = 0, path.stat().st_size
    for block in blocks(path):
        for digest in found.values():
            digest.update(block)
        done += len(block)
        if report:
            report(done, size, "checking")
    return {name: digest.hexdigest() for name, digest in found.items()}


def blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, a mebibyte at a time."""
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            check_stop()
            yield block


def safe_name(name: str, where: str) -> str:
    """A relative name as it may be written below a folder.

    Raises:
        UserError: it leads out of the folder, or is none.
    """
    parts = name.replace("\\", "/").split("/")
    if not name or "\0" in name or name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "" in parts[:-1]:
        raise UserError(f"{where}: the name '{name}' leads out of its folder or is none; nothing of it is kept")
    return "/".join(part for part in parts if part != ".")


def raise_disk_error(error: BaseException) -> None:
    """Raise what is no fault of a server's but of this machine's disk."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES):
        raise error


def one_line(error: Any) -> str:
    """An error's message in one line, or its name where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def _has_size(path: Path, num_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == num_bytes
