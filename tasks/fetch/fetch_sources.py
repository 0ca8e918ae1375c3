"""One source from its door into data/: gathered in a staging of its own, put in its place in one step, recorded."""

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
    """The record of the project's data/."""
    return FetchRecord(project.data, rooms(project) / _SEEN)


def rooms(project: Project) -> Path:
    """Where sources are gathered; not in data/, which is pinned as it is."""
    return project.runs / "fetch"


def chosen(settings: FetchSettings, names: Sequence[str]) -> list[AnyFetchSource]:
    """The sources of these names; without any, all.

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
    """The sources that do not lie whole in data/; with `refresh`, also those that may have changed where they are from.

    Raises:
        UserError: data/ holds something that a source would overwrite.
    """
    found = [source for source in sources if not record.is_whole(source) or (refresh and not source.pinned)]
    for source in found:
        record.require_ours(source.name, source.to)
    record.save_seen()
    return found


def bring(project: Project, settings: FetchSettings, source: AnyFetchSource, report: Report) -> dict[str, Any]:
    """Bring one source into data/; its number of files and bytes.

    Raises:
        UserError: it cannot be had as it is asked for.
        Gone: its server failed too often; the next call goes on from there.
    """
    record = open_record(project)
    record.require_ours(source.name, source.to)
    folder = rooms(project) / f"{source.name}-{asked(source)}"
    for left in rooms(project).glob(f"{source.name}-????????????????"):
        if left != folder:  # of other settings
            shutil.rmtree(left)
    staging = StagingArea.open(folder)
    if not source.pinned:
        _take_over(record, project.data, source, staging)
    try:
        fetched = _door(source)(source, settings, staging, report)
    except UserError:
        staging.leave()
        raise
    if record.has(source, fetched):
        staging.close()
        return {"files": 0, "bytes": 0}
    entry = {"door": source.door, "from": source.shown, "to": source.to, "asked": asked(source)}
    return _place(project, record, source.name, entry, staging, fetched)


def receive(project: Project, stream: BinaryIO, to: str, sha256: str, report: Report) -> dict[str, Any]:
    """Bring what comes through a pipe to data/`to`; its number of files and bytes.

    Raises:
        UserError: something lies there already, nothing comes, or it is not whole.
    """
    to = check_target(to, "--stdin")
    record = open_record(project)
    record.require_ours("", to)
    staging = StagingArea.open(rooms(project) / "stdin")
    try:
        fetched = local_files.receive(stream, to, sha256, staging, report)
        entry = {"door": "stdin", "from": "stdin", "to": to, "asked": ""}
        return _place(project, record, f"stdin:{to}", entry, staging, fetched)
    finally:
        staging.close()  # a pipe cannot be read a second time


def _door(source: AnyFetchSource) -> Callable[[Any, FetchSettings, StagingArea, Report], Fetched]:
    if source.door == "hub":
        from tasks.fetch import hub  # with `datasets`, which takes seconds to import

        return hub.fetch
    doors: dict[str, Callable[..., Fetched]] = {
        "s3": s3_download.fetch,
        "https": https.fetch,
        "local": local_files.fetch,
    }
    return doors[source.door]


def _take_over(record: FetchRecord, data_dir: Path, source: AnyFetchSource, staging: StagingArea) -> None:
    """Put what data/ has of a source that may have grown into its staging, so that only the rest is brought."""
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
    """Put a whole source in its place and record it; a kill at any moment leaves the old one or the new one."""
    target = project.data / entry["to"]
    target.parent.mkdir(parents=True, exist_ok=True)
    entry["fetched"] = timestamp()
    record.placing(name, entry, fetched)
    publish(staging.whole / next(iter(fetched.rows)) if fetched.is_file else staging.whole, target)
    record.placed(name)
    staging.close()
    return {"files": len(fetched.rows), "bytes": sum(row.bytes for row in fetched.rows.values())}
