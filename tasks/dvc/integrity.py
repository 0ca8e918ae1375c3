"""Whether files are what dvc.lock and data.dvc record: those in place, those of the cache, those of a remote.

DVC itself trusts a cached object that is read-only, and a file whose size and time are as before. Here every byte is
read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from model.common.errors import UserError
from tasks.dvc.dvc_digests import Recorded, cache_of, files_of, md5_of, md5s_of, object_path, outputs
from tasks.project.project import Project


def refuse_damaged(project: Project, outputs: Mapping[str, str]) -> None:
    """Refuse to take outputs (path → DVC's digest) out of the cache when an object of them is damaged.

    Raises:
        UserError: naming the first such file and object.
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
    """The files whose cached object is there and is not what its name says."""
    for file, found in _read((file, object_path(objects, file.md5)) for file in files):
        if found != file.md5.removesuffix(".dir"):
            yield file


def changed_in_place(project: Project, files: Iterable[Recorded]) -> Iterator[Recorded]:
    """The files that lie in their place and are not what was recorded."""
    for file, found in _read((file, project.root / file.path) for file in files if not file.md5.endswith(".dir")):
        if found != file.md5:
            yield file


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
    files = list(files_of(outputs(project), objects))
    on_file(f"{len(files):,} files are recorded")
    faults = [
        f"{file.path} is not what was recorded; remove it, and `dvc checkout --force` brings it again"
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
        except Exception as error:  # DVC has no common class for what a remote's settings can lack
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
    """Each file that is there, with the MD5 of what lies in its place."""
    there = [(file, path) for file, path in places if path.is_file()]
    md5s = md5s_of({str(path): path for _, path in there})
    yield from ((file, md5s[str(path)]) for file, path in there)
