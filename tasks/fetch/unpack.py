"""Unpack .zip and .tar archives: only plain files, only below the staging area, and with a size limit."""

from __future__ import annotations

import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from model.common.errors import UserError
from tasks.fetch.transfer import FetchedFile, Report, StagingArea, safe_name, write_stream

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")


def is_archive(path: Path) -> bool:
    """Check by its name whether a file is an archive that `unpack` reads."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


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
        raise UserError(f"{shown}: no archive, or a damaged one ({error}); it was discarded") from None
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
        raise UserError(f"{shown}: a damaged archive ({error}); it was discarded") from None
