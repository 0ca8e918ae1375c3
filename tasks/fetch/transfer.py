"""Shared by all fetch source types: retries, the staging area, the records of fetched files, and unpacking.

Of archives, only plain files below the staging area are unpacked, up to a size limit.
"""

from __future__ import annotations

import errno
import hashlib
import json
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from model.common.errors import Paused, UserError
from model.common.files import digest_of, sync, write_bytes
from tasks.project import signals

Report = Callable[[float, float, str], None]  # bytes done, bytes to do (0: unknown), a short text
BLOCK_BYTES = 1 << 20
_LONGEST_WAIT_SECONDS = 60.0
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")


@dataclass(frozen=True)
class FetchedFile:
    bytes: int
    sha256: str
    url: str
    """Its origin, without secrets."""
    checked: str
    """Kind of checksum that it was compared with: sha256, sha1, etag, crc32, git, or size if the server has none."""
    etag: str = ""
    """The server's name for this version of the file."""


class StagingArea:
    """The folder of one source's downloads, which later runs resume: build/runs/fetch/<source>.

    `whole` holds complete, verified files, and `parts` unfinished ones.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.whole, self.parts = folder, folder / "whole", folder / "parts"
        self.parts.mkdir(parents=True, exist_ok=True)
        self.whole.mkdir(exist_ok=True)
        self.files: dict[str, FetchedFile] = {}
        """The files in `whole`, by their relative names; those of an earlier run at first."""
        self.is_file = False
        """True if the source is one file rather than a folder."""
        self._ledger = folder / "rows.jsonl"
        if self._ledger.exists():
            for name, row in dict(map(json.loads, intact_lines(self._ledger))).items():
                path = self.whole / name
                if path.is_file() and path.stat().st_size == row["bytes"]:
                    self.files[name] = FetchedFile(**row)

    def part(self, name: str) -> Path:
        """Path of the unfinished file `name`."""
        return self.parts / hashlib.sha256(name.encode()).hexdigest()[:32]

    def keep(self, name: str, path: Path, row: FetchedFile) -> None:
        """Move the complete, verified file `path` to its name in `whole`."""
        sync(path)
        target = self.whole / name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
        self.files[name] = row
        with self._ledger.open("a", encoding="utf-8") as ledger:
            ledger.write(with_checksum(json.dumps([name, asdict(row)])))

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove all other files: the source no longer has them, or has another version."""
        asked = set(names)
        for path in [path for path in self.whole.rglob("*") if path.is_file()]:
            if path.relative_to(self.whole).as_posix() not in asked:
                path.unlink()
        self.files = {name: row for name, row in self.files.items() if name in asked}
        lines = [with_checksum(json.dumps([name, asdict(row)])) for name, row in self.files.items()]
        write_bytes(self._ledger, "".join(lines).encode())

    def leave(self) -> None:
        """Remove the staging area, unless it holds data that a later run can use."""
        if not any(path.is_file() and path.stat().st_size for path in self.folder.rglob("*")):
            self.close()

    def close(self) -> None:
        """Remove the staging area."""
        shutil.rmtree(self.folder, ignore_errors=True)


def with_checksum(text: str) -> str:
    """Return a line for a file of notes that `intact_lines` reads."""
    return f"{digest_of(text)} {text}\n"


def intact_lines(path: Path) -> list[str]:
    """Read the lines of `with_checksum` in a file, without those that are incomplete or damaged."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [text for checksum, _, text in (line.partition(" ") for line in lines) if checksum == digest_of(text)]


class Gone(Paused):
    """A server failed too often in a row; the next `cloze fetch` resumes the download."""


@dataclass
class Attempts:
    """Counts consecutive failures of one transfer, and doubles the wait after each."""

    what: str
    """The transfer, in messages."""
    allowed: int
    first_wait: float
    _failed: int = 0
    _furthest: int = 0

    def progress(self, reached: int) -> None:
        """Reset the failure count if more bytes have arrived than ever before."""
        if reached > self._furthest:
            self._furthest = reached
            self._failed = 0

    def succeeded(self) -> None:
        """Reset the failure count after a successful call."""
        self._failed = 0

    def failed(self, reason: str, wait_seconds: float = 0.0) -> None:
        """Wait for the next attempt, at least as long as the server asks.

        Raises:
            Gone: no attempt is left.
            Paused: the run was asked to stop.
        """
        self._failed += 1
        if self._failed >= self.allowed:
            raise Gone(f"{self.what}: {reason}, repeatedly; downloaded data is kept")
        wait = max(self.first_wait * 2 ** (self._failed - 1), wait_seconds)
        signals.requested.wait(min(wait, _LONGEST_WAIT_SECONDS))
        check_stop()


def check_stop() -> None:
    if signals.requested.is_set():
        raise Paused("stopped")


def hashes(path: Path, *names: str, report: Report | None = None) -> dict[str, str]:
    """Hex digests of a file by hashlib's names, including sha256, in one pass."""
    found = {name: hashlib.new(name, usedforsecurity=False) for name in {"sha256", *names}}
    done, size = 0, path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            check_stop()
            for digest in found.values():
                digest.update(block)
            done += len(block)
            if report:
                report(done, size, "checking")
    return {name: digest.hexdigest() for name, digest in found.items()}


def write_stream(stream: IO[bytes], path: Path, progress: Callable[[int], None]) -> tuple[int, str]:
    """Write a stream to a file, and call `progress` with the size before each write; returns the size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as out:
        while block := stream.read(BLOCK_BYTES):
            size += len(block)
            progress(size)
            digest.update(block)
            out.write(block)
            check_stop()
    return size, digest.hexdigest()


def safe_name(name: str, where: str) -> str:
    """Normalize a relative name for use below a folder.

    Raises:
        UserError: the name is empty or outside the folder.
    """
    parts = name.replace("\\", "/").split("/")
    if not name or "\0" in name or name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "" in parts[:-1]:
        raise UserError(f"{where}: the name '{name}' is outside its folder or empty; it was discarded")
    return "/".join(part for part in parts if part != ".")


def raise_disk_error(error: BaseException) -> None:
    """Raise errors of the local disk, which no server caused."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES):
        raise error


def one_line(error: Any) -> str:
    """An error's message in one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def is_archive(path: Path) -> bool:
    """Check by its name whether a file is an archive that `unpack` reads."""
    return path.is_file() and path.name.lower().endswith(_ARCHIVES)


def unpack(path: Path, staging: StagingArea, max_bytes: int, shown: str, report: Report) -> None:
    """Put the plain files of an archive (by its content a .zip, else a .tar) into `staging`, without links and devices.

    Raises:
        UserError: the archive is damaged or encrypted, a name points outside, or it holds more than `max_bytes`.
    """
    members = _zip_members if zipfile.is_zipfile(path) else _tar_members
    total = 0

    def progress(size: int) -> None:
        if total + size > max_bytes:
            raise UserError(
                f"{shown}: more than {max_bytes:,} bytes in it; it was discarded: raise"
                " fetch.max_unpacked_bytes if you trust the archive"
            )
        report(total + size, 0, f"unpacking {(total + size) / 1e6:,.0f} MB")

    try:
        for name, file in members(path, shown):
            part = staging.part(f"unpacking {name}")
            size, sha256 = write_stream(file, part, progress)
            staging.keep(name, part, FetchedFile(size, sha256, f"{shown}#{name}", "archive"))
            total += size
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{shown}: not an archive, or the archive is damaged ({error}); it was discarded") from None
    except RuntimeError as error:  # zipfile raises it for passwords and rare compression methods
        raise UserError(f"{shown}: an archive that cannot be read ({error}); unpack it yourself") from None
    if not total:
        raise UserError(f"{shown}: an archive without files")


def _zip_members(path: Path, shown: str) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            name = safe_name(entry.filename.rstrip("/"), shown)
            is_link = (entry.external_attr >> 28) == 0xA  # as Unix's zip marks them
            if not entry.is_dir() and not is_link:
                with archive.open(entry) as file:
                    yield name, file


def _tar_members(path: Path, shown: str) -> Iterator[tuple[str, IO[bytes]]]:
    safe = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
    try:
        with tarfile.open(path, "r:*") as archive:
            for entry in archive:
                name = safe_name(os.path.normpath(entry.name) if entry.name.startswith("./") else entry.name, shown)
                if safe is not None and not entry.issym() and not entry.islnk():
                    safe(entry, str(path.parent))
                file = archive.extractfile(entry) if entry.isreg() else None
                if file is not None:
                    with file:
                        yield name, file
    except OSError as error:  # gzip and bz2 raise it for damaged data
        if error.errno is not None:
            raise
        raise UserError(f"{shown}: the archive is damaged ({error}); it was discarded") from None
