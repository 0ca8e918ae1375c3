"""Fetch a source into data/: download into a staging area, move into place in one step, and record the files.

data/FETCHED.json records the files that `cloze fetch` downloaded, their origin, and their digests. It is part of data/,
so data.dvc pins it together with the files; no stage depends on it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from model.common.errors import UserError
from model.common.files import digest_of, digest_of_file, read_json, write_json
from model.common.state_files import read_state, write_state
from tasks.fetch import https, hub, s3_download
from tasks.fetch.transfer import (
    FetchedFile,
    Report,
    StagingArea,
    hashes,
    is_archive,
    one_line,
    safe_name,
    unpack,
    write_stream,
)
from tasks.params.fetch import RECORD, AnyFetchSource, FetchSettings, HubSource, LocalSource, check_target
from tasks.project.project import Project
from tasks.project.workspace import folder_bytes, publish, require_space, timestamp

_TUNING = {"name", "to", "part_bytes", "num_connections"}  # settings that do not change the content
_XML_END = b"</mediawiki>"


class FetchRecord:
    """The sources that were fetched into a data folder.

    An entry has kind, from, revision, asked (a digest of the settings), fetched (when) and files, whose keys are paths
    relative to data/ and whose values are bytes, sha256, url, checked and etag.
    """

    def __init__(self, data_dir: Path, seen_path: Path) -> None:
        self._data = data_dir
        self._path = data_dir / RECORD
        self._seen_path = seen_path
        self._seen: dict[str, list[Any]] = read_state(seen_path)
        self.sources: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            try:
                self.sources = dict(read_json(self._path)["sources"])
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"data/{RECORD}: not a record of `cloze fetch` ({one_line(error)}); restore it with `dvc checkout`"
                ) from None

    def is_whole(self, source: AnyFetchSource) -> bool:
        """Check whether data/ holds the complete, unchanged files of the source.

        Raises:
            UserError: one of the files was changed.
        """
        entry = self.sources.get(source.name, {})
        if "replaces" in entry:  # the process was killed while it moved the files into place
            if not all(self._is_intact(name, row) for name, row in entry["files"].items()):
                return False
            self.placed(source.name)
        files = entry.get("files", {})
        for name, row in files.items():
            if (self._data / name).exists() and not self._is_intact(name, row):
                raise UserError(
                    f"data/{name}: was changed since `cloze fetch` brought it; move it away, or take the fetch source"
                    f" '{source.name}' out of params.yaml"
                )
        is_complete = bool(files) and all((self._data / name).exists() for name in files)
        return is_complete and (entry["asked"], entry["to"]) == (asked(source), source.to)

    def require_ours(self, source_name: str, to: str) -> None:
        """Refuse a target that holds files which this source did not create.

        Raises:
            UserError: it does; the message names one file.
        """
        entry = self.sources.get(source_name, {})
        ours = [entry.get("files", {}), entry.get("replaces", {})]
        target = self._data / to
        for parent in Path(to).parents:
            if (self._data / parent).is_file():
                raise UserError(f"data/{parent.as_posix()}: is a file, so nothing can be stored below it")
        found = [target] if target.is_file() else target.rglob("*")
        for path in sorted(path for path in found if not path.is_dir()):
            name = path.relative_to(self._data).as_posix()
            if not any(name in files and self._is_intact(name, files[name]) for files in ours):
                where = "a place" if target.is_file() else "a folder"
                raise UserError(
                    f"data/{name}: exists, but fetch source '{source_name}' did not create it; move it away, or give"
                    f" the source {where} of its own (`to`)"
                )

    def placing(self, name: str, entry: dict[str, Any], staging: StagingArea) -> None:
        """Record the files before they are moved to data/`entry["to"]`; call `placed` after the move.

        Without the first of the two, a kill between the files and their record would leave files that nobody knows.
        """
        files = _files(entry["to"], staging)
        before = self.sources.get(name, {})
        replaces = before.get("files", {}) | before.get("replaces", {})
        self.sources[name] = entry | {"fetched": timestamp(), "files": files, "replaces": replaces}
        write_json(self._path, {"sources": self.sources})

    def placed(self, name: str) -> None:
        """After the move: remove the files that were replaced, and remember the new ones."""
        entry = self.sources[name]
        for path, row in entry["replaces"].items():
            if path not in entry["files"] and self._is_intact(path, row):
                (self._data / path).unlink()
        del entry["replaces"]
        write_json(self._path, {"sources": self.sources})
        for path, row in entry["files"].items():
            self._note(path, row["sha256"])
        self.save_seen()

    def save_seen(self) -> None:
        """Save the size and time of verified files, so that unchanged ones are not read again."""
        write_state(self._seen_path, self._seen)

    def _is_intact(self, name: str, row: dict[str, Any]) -> bool:
        """Check whether data/ holds the file with these bytes; reads only files whose size or time changed."""
        path = self._data / name
        if not path.is_file() or path.stat().st_size != row["bytes"]:
            return False
        stat = path.stat()
        if self._seen.get(name, [])[:3] != [stat.st_size, stat.st_mtime_ns, stat.st_ino]:
            self._note(name, digest_of_file(path))
        return bool(self._seen[name][3] == row["sha256"])

    def _note(self, name: str, sha256: str) -> None:
        stat = (self._data / name).stat()
        self._seen[name] = [stat.st_size, stat.st_mtime_ns, stat.st_ino, sha256]


def asked(source: AnyFetchSource) -> str:
    """Digest of the settings that determine the content; with their former keys, so that it does not change."""
    content = source.model_dump(mode="json", exclude=_TUNING)
    kind = content.pop("kind")
    if isinstance(source, HubSource):
        content[kind] = content.pop("repo")
        absent: dict[str, Any] = {
            "dataset": None,
            "model": None,
            "config": None,
            "split": "train",
            "columns": [],
            "max_rows": None,
        }
        return digest_of({**absent, **content, "door": "hub"})
    return digest_of(content | {"door": kind})


def _files(to: str, staging: StagingArea) -> dict[str, dict[str, Any]]:
    rows = {(to if staging.is_file else f"{to}/{file}"): asdict(row) for file, row in staging.files.items()}
    return {path: {key: value for key, value in row.items() if value != ""} for path, row in sorted(rows.items())}


def open_record(project: Project) -> FetchRecord:
    """The record of the project's data/ directory."""
    return FetchRecord(project.data, staging_dir(project) / "seen.json")


def staging_dir(project: Project) -> Path:
    """Parent of the staging areas; outside data/, whose content is pinned by DVC."""
    return project.runs / "fetch"


def chosen(settings: FetchSettings, names: Sequence[str]) -> list[AnyFetchSource]:
    """The sources with these names, or all sources if no names are given.

    Raises:
        UserError: there is no such source, or there are none at all.
    """
    known = [source.name for source in settings.sources]
    if not known:
        raise UserError("params.yaml: no fetch.sources; docs/fetch.md shows what to write there")
    for name in names:
        if name not in known:
            raise UserError(f"no fetch source '{name}' in params.yaml, only {', '.join(known)}")
    return [source for source in settings.sources if not names or source.name in names]


def describe(source: AnyFetchSource) -> str:
    """One line for `cloze fetch --dry-run`: the source, what pins its content, and its target."""
    pins = [f"{name} {value}" for name, value in source.pins.items()] or ["not pinned"]
    return f"{source.name}: {source.kind}, {source.shown}, {', '.join(pins)}, to data/{source.to}"


def stale(record: FetchRecord, sources: list[AnyFetchSource], refresh: bool) -> list[AnyFetchSource]:
    """The sources that are incomplete in data/; with `refresh`, also those whose origin may have changed.

    Raises:
        UserError: data/ holds something that a source would overwrite.
    """
    found = [source for source in sources if not record.is_whole(source) or (refresh and not source.pinned)]
    for source in found:
        record.require_ours(source.name, source.to)
    record.save_seen()
    return found


def _fetch_local(source: LocalSource, settings: FetchSettings, staging: StagingArea, report: Report) -> None:
    """Copy the file or folder at the source's path, or unpack the archive."""
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
                raise UserError(f"{shown}: the file changed while it was being read; fetch it again")
            staging.keep(name, part, FetchedFile(copied, sha256, shown, "size"))
        done += size
        report(done, total, name)


_FETCHERS: dict[str, Callable[..., None]] = {
    "dataset": hub.fetch,
    "model": hub.fetch,
    "s3": s3_download.fetch,
    "https": https.fetch,
    "local": _fetch_local,
}


def bring(project: Project, settings: FetchSettings, source: AnyFetchSource, report: Report) -> dict[str, Any]:
    """Download one source into data/; returns its number of files and bytes.

    Raises:
        UserError: the source is not available as specified.
        Gone: its server failed too often; the next call resumes the download.
    """
    record = open_record(project)
    record.require_ours(source.name, source.to)
    folder = staging_dir(project) / f"{source.name}-{asked(source)}"
    for left in staging_dir(project).glob(f"{source.name}-????????????????"):
        if left != folder:  # of other settings
            shutil.rmtree(left)
    staging = StagingArea(folder)
    if not source.pinned:
        _reuse_existing(record, project.data, source, staging)
    try:
        _FETCHERS[source.kind](source, settings, staging, report)
    except UserError:
        staging.leave()
        raise
    if record.is_whole(source) and record.sources[source.name]["files"] == _files(source.to, staging):
        staging.close()
        return {"files": 0, "bytes": 0}
    entry = {"kind": source.kind, "from": source.shown, "to": source.to, "asked": asked(source)}
    entry["revision"] = source.revision if isinstance(source, HubSource) else ""
    return _place(project, record, source.name, entry, staging)


def receive(project: Project, stream: BinaryIO, to: str, sha256: str, report: Report) -> dict[str, Any]:
    """Store the content of a pipe as data/`to`; returns its number of files and bytes.

    Raises:
        UserError: the target exists already, or the input is empty or incomplete.
    """
    to = check_target(to, "--stdin")
    record = open_record(project)
    record.require_ours("", to)
    staging = StagingArea(staging_dir(project) / "stdin")
    try:
        _receive(stream, to, sha256, staging, report)
        entry = {"kind": "stdin", "from": "stdin", "to": to, "asked": "", "revision": ""}
        return _place(project, record, f"stdin:{to}", entry, staging)
    finally:
        staging.close()  # a pipe cannot be read a second time


def _receive(stream: BinaryIO, to: str, sha256: str, staging: StagingArea, report: Report) -> None:
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


def _reuse_existing(record: FetchRecord, data_dir: Path, source: AnyFetchSource, staging: StagingArea) -> None:
    """Copy the existing files of a source into its staging area, so that only changed ones are downloaded."""
    entry = record.sources.get(source.name, {})
    if entry.get("asked") != asked(source) or entry.get("to") != source.to or staging.files:
        return
    for path, row in entry["files"].items():
        name = path.removeprefix(f"{source.to}/") if path != source.to else Path(path).name
        if (data_dir / path).exists():
            part = staging.part(name)
            part.unlink(missing_ok=True)
            try:
                os.link(data_dir / path, part)
            except OSError:  # another disk
                shutil.copyfile(data_dir / path, part)
            staging.keep(name, part, FetchedFile(**row))


def _place(
    project: Project, record: FetchRecord, name: str, entry: dict[str, Any], staging: StagingArea
) -> dict[str, Any]:
    """Move a complete source into place and record it; a kill at any moment leaves the old files or the new ones."""
    target = project.data / entry["to"]
    record.placing(name, entry, staging)
    publish(staging.whole / next(iter(staging.files)) if staging.is_file else staging.whole, target)
    record.placed(name)
    staging.close()
    return {"files": len(staging.files), "bytes": sum(row.bytes for row in staging.files.values())}
