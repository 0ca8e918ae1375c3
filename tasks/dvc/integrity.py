"""Compare files in the workspace, the cache and remotes with the hashes in dvc.lock and data.dvc.

DVC trusts read-only cache objects, and files with unchanged size and time. This module reads every byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from model.common.errors import UserError
from tasks.dvc.dvc_digests import Recorded, cache_of, files_of, md5_of, md5s_of, object_path, outputs
from tasks.project.project import Project


def refuse_damaged(project: Project, outputs: Mapping[str, str]) -> None:
    """Check that the cached objects of outputs (path → MD5) are intact.

    Raises:
        UserError: an object is damaged; the message names it.
    """
    objects = cache_of(project)
    for file in damaged_in_cache(objects, files_of(outputs, objects)):
        raise UserError(damage_line(project, objects, file))


def is_cached(project: Project, outputs: Mapping[str, str]) -> bool:
    """Whether the cache has every object of these outputs, damaged or not."""
    objects = cache_of(project)
    if not all(object_path(objects, md5).is_file() for md5 in outputs.values()):
        return False
    return all(object_path(objects, file.md5).is_file() for file in files_of(outputs, objects))


def damaged_in_cache(objects: Path, files: Iterable[Recorded]) -> Iterator[Recorded]:
    """Yield the files whose cached object does not match its MD5."""
    for file, found in _read((file, object_path(objects, file.md5)) for file in files):
        if found != file.md5.removesuffix(".dir"):
            yield file


def changed_in_place(project: Project, files: Iterable[Recorded]) -> Iterator[Recorded]:
    """Yield the files in the workspace that differ from their recorded MD5."""
    for file, found in _read((file, project.root / file.path) for file in files if not file.md5.endswith(".dir")):
        if found != file.md5:
            yield file


def damage_line(project: Project, objects: Path, file: Recorded) -> str:
    """Message about a damaged cache object."""
    where = project.relative(object_path(objects, file.md5))
    return f"{where}: the cached object of {file.path} is damaged; delete it, and restore it with `dvc pull` or a run"


def verify(project: Project, remote: str | None, on_file: Callable[[str], None]) -> list[str]:
    """Read every recorded file in its place, in the cache and, if one is named, in a remote.

    Returns:
        A line for each that is not what was recorded.
    """
    objects = cache_of(project)
    files = list(files_of(outputs(project), objects))
    on_file(f"{len(files):,} files are recorded")
    faults = [
        f"{file.path} differs from its record; delete it, and restore it with `dvc checkout --force`"
        for file in changed_in_place(project, files)
    ]
    faults += [damage_line(project, objects, file) for file in damaged_in_cache(objects, files)]
    if remote is not None:
        faults += _damaged_in_remote(project, remote, files)
    return faults


def _damaged_in_remote(project: Project, name: str, files: list[Recorded]) -> Iterator[str]:
    from dvc.repo import Repo

    with contextlib.closing(Repo(str(project.root))) as repo:
        try:
            store = repo.cloud.get_remote_odb(name)
        except Exception as error:  # DVC's errors have no common base class
            raise UserError(f"remote '{name}': {' '.join(str(error).split())}") from error
        for file in files:
            place = store.oid_to_path(file.md5)
            try:
                with store.fs.open(place, "rb") as stream:
                    found = md5_of(stream)
            except FileNotFoundError:
                yield f"{place}: {file.path} is missing in the remote '{name}'; `dvc push` puts it there"
                continue
            if found != file.md5.removesuffix(".dir"):
                yield f"{place}: the object of {file.path} is damaged in the remote '{name}'; remove it and `dvc push`"


def _read(places: Iterable[tuple[Recorded, Path]]) -> Iterator[tuple[Recorded, str]]:
    """Yield each existing file with the MD5 of its content."""
    there = [(file, path) for file, path in places if path.is_file()]
    md5s = md5s_of({str(path): path for _, path in there})
    yield from ((file, md5s[str(path)]) for file, path in there)
