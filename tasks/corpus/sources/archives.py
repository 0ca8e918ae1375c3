"""Files inside .zip and .tar archives, read in place: nothing is unpacked, so no name in one can lead anywhere."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, BinaryIO

from model.common.errors import UserError

ZIP_SUFFIXES = (".zip",)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
SUFFIXES = ZIP_SUFFIXES + TAR_SUFFIXES

Member = tuple[str, bytes | None]  # name, content (None: larger than allowed)


def is_archive(name: str) -> bool:
    """Whether a file is an archive by its name."""
    return name.lower().endswith(SUFFIXES)


def read_members(file: BinaryIO, name: str, suffixes: tuple[str, ...], max_bytes: int) -> Iterator[Member]:
    """The files of an archive whose names end with one of `suffixes`: of a zip by name, of a tar as they come.

    Never more than `max_bytes` of a file are unpacked, whatever the archive says of its size.

    Raises:
        UserError: the archive is damaged, cut off or locked.
    """
    read = _zip_members if name.lower().endswith(ZIP_SUFFIXES) else _tar_members
    try:
        yield from read(file, suffixes, max_bytes)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise UserError(f"{name}: a damaged or cut off archive ({error}); download it again") from None
    except RuntimeError as error:  # what zipfile says of passwords and rare packing
        raise UserError(f"{name}: an archive that cannot be read ({error}); unpack it yourself") from None


def _zip_members(file: BinaryIO, suffixes: tuple[str, ...], max_bytes: int) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            if not entry.is_dir() and entry.filename.lower().endswith(suffixes):
                with archive.open(entry) as member:
                    yield entry.filename, _bounded(member, max_bytes)


def _tar_members(file: BinaryIO, suffixes: tuple[str, ...], max_bytes: int) -> Iterator[Member]:
    with tarfile.open(fileobj=file, mode="r|*") as archive:  # a stream: in order, in little memory
        for entry in archive:
            member = archive.extractfile(entry) if entry.isreg() and entry.name.lower().endswith(suffixes) else None
            if member is not None:
                yield entry.name, _bounded(member, max_bytes)


def _bounded(file: IO[bytes], max_bytes: int) -> bytes | None:
    content = file.read(max_bytes + 1)
    return content if len(content) <= max_bytes else None
