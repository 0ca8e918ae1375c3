"""Whether files are what dvc.lock and data.dvc record: those in place, those of the cache, those of a remote.

DVC itself trusts a cached object that is read-only, and a file whose size and time are as before. Here every byte is
read: MD5 is what DVC names objects by; it finds what has rotted or was cut off, not what an adversary has made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from model.errors import UserError
from tasks.project import Project
from tasks.yamls import read_yaml


@dataclass(frozen=True)
class Recorded:
    """A file of an output, or of data/, as it was recorded."""

    path: str
    """Relative to the project."""
    md5: str
    """Of its bytes; its name in the cache and in remotes."""


def recorded(project: Project, objects: Path, stage: str | None = None) -> Iterator[Recorded]:
    """All recorded files, or those of one stage's outputs. A folder whose listing is not in the cache at `objects` is
    passed over; one whose listing is damaged is given as itself (`build/corpus.dir`)."""
    for path, md5 in _outputs(project, stage):
        if not md5.endswith(".dir"):
            yield Recorded(path, md5)
            continue
        listing = object_path(objects, md5)
        if not listing.is_file():
            continue
        yield Recorded(f"{path}.dir", md5)
        content = listing.read_bytes()
        if _md5(content) == md5.removesuffix(".dir"):
            yield from (Recorded(f"{path}/{file['relpath']}", file["md5"]) for file in json.loads(content))


def object_path(objects: Path, md5: str) -> Path:
    """Where the cache keeps an object."""
    return objects / md5[:2] / md5[2:]


def cache_of(project: Project) -> Path:
    """The folder of DVC's cached objects."""
    from dvc.config import Config

    settings = Config(dvc_dir=str(project.root / ".dvc"), validate=False)
    folder = Path(settings.get("cache", {}).get("dir") or project.root / ".dvc" / "cache")
    return (folder if folder.is_absolute() else project.root / ".dvc" / folder) / "files" / "md5"


def damaged_in_cache(objects: Path, files: Iterator[Recorded]) -> Iterator[Recorded]:
    """The files whose cached object is there and is not what its name says."""
    for file in files:
        path = object_path(objects, file.md5)
        if path.is_file() and _md5_of(path.open("rb")) != file.md5.removesuffix(".dir"):
            yield file


def changed_in_place(project: Project, files: Iterator[Recorded]) -> Iterator[Recorded]:
    """The files that lie in their place and are not what was recorded."""
    for file in files:
        path = project.root / file.path
        if path.is_file() and _md5_of(path.open("rb")) != file.md5:
            yield file


def refuse_changed(project: Project, stage: str) -> None:
    """Refuse a published output of which a file was changed since its stage ended and is not what dvc.lock records.

    Missing files are no fault, and neither is what an unrecorded run of the stage has published.

    Raises:
        UserError: naming the first such file.
    """
    record = project.runs / "stages" / f"{stage}.json"
    published = record.stat().st_mtime if record.is_file() else float("-inf")
    for file in changed_in_place(project, recorded(project, cache_of(project), stage)):
        if (project.root / file.path).stat().st_mtime <= published:
            continue
        raise UserError(
            f"{file.path} is not what dvc.lock records: it was damaged or edited; `dvc checkout --force {stage}`"
            f" restores it, or remove {file.path} and run again"
        )


def refuse_damaged(project: Project, outputs: dict[str, str]) -> None:
    """Refuse to take outputs (path → DVC's digest) out of the cache when an object of them is damaged.

    Raises:
        UserError: naming the first such file and object.
    """
    objects = cache_of(project)
    for path, md5 in outputs.items():
        for file in damaged_in_cache(objects, _files_of(path, md5, objects)):
            raise UserError(damage_line(project, objects, file))


def damage_line(project: Project, objects: Path, file: Recorded) -> str:
    """What to say of a damaged object of the cache."""
    where = project.relative(object_path(objects, file.md5))
    return f"{where}: the cached object of {file.path} is damaged; remove it, and `dvc pull` or a run brings it again"


def verify(project: Project, remote: str | None, on_file: Callable[[str], None]) -> list[str]:
    """Read every recorded file in its place, in the cache and, if one is named, in a remote.

    Returns:
        A line for each that is not what was recorded.
    """
    objects = cache_of(project)
    files = list(recorded(project, objects))
    on_file(f"{len(files):,} files are recorded")
    faults = [
        f"{file.path} is not what was recorded; `dvc checkout --force` restores it"
        for file in changed_in_place(project, (file for file in files if not file.md5.endswith(".dir")))
    ]
    faults += [damage_line(project, objects, file) for file in damaged_in_cache(objects, iter(files))]
    if remote is not None:
        faults += _damaged_in_remote(project, remote, files)
    return faults


def _damaged_in_remote(project: Project, name: str, files: list[Recorded]) -> Iterator[str]:
    from dvc.repo import Repo

    with contextlib.closing(Repo(str(project.root))) as repo:
        try:
            store = repo.cloud.get_remote_odb(name)
        except Exception as error:  # DVC has no common class for what a remote's settings can lack
            raise UserError(f"remote '{name}': {' '.join(str(error).split())}") from error
        for file in files:
            place = store.oid_to_path(file.md5)
            try:
                found = _md5_of(store.fs.open(place, "rb"))
            except FileNotFoundError:
                yield f"{place}: {file.path} is missing in the remote '{name}'; `dvc push` puts it there"
                continue
            if found != file.md5.removesuffix(".dir"):
                yield f"{place}: the object of {file.path} is damaged in the remote '{name}'; remove it and `dvc push`"


def _outputs(project: Project, stage: str | None) -> Iterator[tuple[str, str]]:
    lock = project.root / "dvc.lock"
    stages: dict[str, Any] = (read_yaml(lock).get("stages") or {}) if lock.is_file() else {}
    for name, content in stages.items():
        if stage in (None, name):
            yield from ((out["path"], out["md5"]) for out in content.get("outs") or [] if "md5" in out)
    pin = project.root / "data.dvc"
    if stage is None and pin.is_file():
        yield from ((out["path"], out["md5"]) for out in read_yaml(pin).get("outs") or [] if "md5" in out)


def _files_of(path: str, md5: str, objects: Path) -> Iterator[Recorded]:
    yield Recorded(path, md5)
    listing = object_path(objects, md5)
    if md5.endswith(".dir") and listing.is_file() and _md5(listing.read_bytes()) == md5.removesuffix(".dir"):
        files = json.loads(listing.read_bytes())
        yield from (Recorded(f"{path}/{file['relpath']}", file["md5"]) for file in files)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _md5_of(file: IO[bytes]) -> str:
    with file:
        digest = hashlib.md5(usedforsecurity=False)
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
