"""Fetch a source into data/: download into a staging area, move into place in one step, and record the files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from model.common.errors import UserError
from tasks.fetch import https, local_files, s3_download
from tasks.fetch.fetch_record import FetchRecord, asked
from tasks.fetch.transfer import Fetched, FetchedFile, Report, StagingArea
from tasks.params.fetch import AnyFetchSource, FetchSettings, check_target
from tasks.project.project import Project
from tasks.project.workspace import publish, timestamp

_SEEN = "seen.json"


def open_record(project: Project) -> FetchRecord:
    """The record of the project's data/ directory."""
    return FetchRecord(project.data, staging_dir(project) / _SEEN)


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
    staging = StagingArea.open(folder)
    if not source.pinned:
        _reuse_existing(record, project.data, source, staging)
    try:
        fetched = _fetcher(source)(source, settings, staging, report)
    except UserError:
        staging.leave()
        raise
    if record.has(source, fetched):
        staging.close()
        return {"files": 0, "bytes": 0}
    entry = {"door": source.door, "from": source.shown, "to": source.to, "asked": asked(source)}
    return _place(project, record, source.name, entry, staging, fetched)


def receive(project: Project, stream: BinaryIO, to: str, sha256: str, report: Report) -> dict[str, Any]:
    """Store the content of a pipe as data/`to`; returns its number of files and bytes.

    Raises:
        UserError: the target exists already, or the input is empty or incomplete.
    """
    to = check_target(to, "--stdin")
    record = open_record(project)
    record.require_ours("", to)
    staging = StagingArea.open(staging_dir(project) / "stdin")
    try:
        fetched = local_files.receive(stream, to, sha256, staging, report)
        entry = {"door": "stdin", "from": "stdin", "to": to, "asked": ""}
        return _place(project, record, f"stdin:{to}", entry, staging, fetched)
    finally:
        staging.close()  # a pipe cannot be read a second time


def _fetcher(source: AnyFetchSource) -> Callable[[Any, FetchSettings, StagingArea, Report], Fetched]:
    if source.door == "hub":
        from tasks.fetch import hub  # with `datasets`, which takes seconds to import

        return hub.fetch
    fetchers: dict[str, Callable[..., Fetched]] = {
        "s3": s3_download.fetch,
        "https": https.fetch,
        "local": local_files.fetch,
    }
    return fetchers[source.door]


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
    project: Project, record: FetchRecord, name: str, entry: dict[str, Any], staging: StagingArea, fetched: Fetched
) -> dict[str, Any]:
    """Move a complete source into place and record it; a kill at any moment leaves the old files or the new ones."""
    target = project.data / entry["to"]
    target.parent.mkdir(parents=True, exist_ok=True)
    entry["fetched"] = timestamp()
    record.placing(name, entry, fetched)
    publish(staging.whole / next(iter(fetched.rows)) if fetched.is_file else staging.whole, target)
    record.placed(name)
    staging.close()
    return {"files": len(fetched.rows), "bytes": sum(row.bytes for row in fetched.rows.values())}
