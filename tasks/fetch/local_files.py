"""The fetch source type local (folders, files and archives of this machine), and input from a pipe."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import BinaryIO

from model.common.errors import UserError
from tasks.fetch.transfer import FetchedFile, Report, StagingArea, hashes, safe_name, write_stream
from tasks.fetch.unpack import is_archive, unpack
from tasks.params.fetch import FetchSettings, LocalSource
from tasks.project.workspace import folder_bytes, require_space

_XML_END = b"</mediawiki>"


def fetch(source: LocalSource, settings: FetchSettings, staging: StagingArea, report: Report) -> None:
    """Copy the file or folder at the source's path, or unpack the archive.

    Raises:
        UserError: the path does not exist, or an archive is refused.
    """
    path = Path(source.path).expanduser()
    if not path.exists():
        raise UserError(f"{source.path}: missing; the fetch source '{source.name}' reads it")
    if is_archive(path):
        staging.keep_only([])
        unpack(path, staging, settings.max_unpacked_bytes, source.path, report)
        return
    staging.is_file = path.is_file()
    if staging.is_file:
        files = {PurePosixPath(source.to).name: path}
    else:
        found = sorted(file for file in path.rglob("*") if file.is_file())
        files = {safe_name(file.relative_to(path).as_posix(), source.path): file for file in found}
    if not files:
        raise UserError(f"{source.path}: a folder without files; the fetch source '{source.name}' reads it")
    total = sum(file.stat().st_size for file in files.values())
    require_space(staging.folder, total - folder_bytes(staging.whole), "the copy")
    staging.keep_only(files)
    done = 0
    for name, file in files.items():
        size = file.stat().st_size
        if name not in staging.files or staging.files[name].sha256 != hashes(file)["sha256"]:
            shown = source.path if staging.is_file else f"{source.path}/{name}"
            part = staging.part(name)
            with file.open("rb") as stream:
                copied, sha256 = write_stream(stream, part, lambda _: None)
            if copied != file.stat().st_size:
                raise UserError(f"{shown}: changed while it was read; fetch again")
            staging.keep(name, part, FetchedFile(copied, sha256, shown, "size"))
        done += size
        report(done, total, name)


def receive(stream: BinaryIO, to: str, sha256: str, staging: StagingArea, report: Report) -> None:
    """Write the content of a pipe to the staging area.

    Raises:
        UserError: the input is empty, its digest differs, or it is an incomplete dump.
    """
    staging.is_file = True
    name = PurePosixPath(to).name
    part = staging.part(name)
    size, found = write_stream(stream, part, lambda size: report(size, 0, f"{size / 1e6:,.0f} MB"))
    if not size:
        raise UserError(
            f"--stdin {to}: the input is empty; pipe a file into it, as in `bzcat dump.xml.bz2 | cloze fetch ...`"
        )
    if sha256 and found != sha256:
        raise UserError(f"--stdin {to}: its sha256 is {found}, expected {sha256}; it was discarded")
    with part.open("rb") as file:
        file.seek(max(0, size - 4096))
        if name.endswith(".xml") and not file.read().rstrip().endswith(_XML_END):
            raise UserError(f"--stdin {to}: ends without {_XML_END.decode()}, so it was cut off; it was discarded")
    staging.keep(name, part, FetchedFile(size, found, "stdin", "sha256" if sha256 else "size"))
