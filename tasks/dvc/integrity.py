"""Hashes of files: those that DVC and the stages record, and comparison of the content with them.

DVC records outputs in dvc.lock and data.dvc, and their files in the cache's directory listings. It identifies objects
by MD5, which detects corruption and truncation, but not deliberate manipulation.

DVC knows an output only after it is committed, trusts read-only cache objects, and compares only size and time.
Therefore each stage also records the MD5 of each file that it publishes. Consumers read outputs completely and accept
only files that match the stage's record or dvc.lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from model.common.errors import UserError
from model.common.state_files import read_state, write_state
from tasks.project.progress import warn
from tasks.project.project import Project
from tasks.project.workspace import dvc_config
from tasks.project.yaml_files import read_yaml

Key = TypeVar("Key")
LOCK = "dvc.lock"
PIN = "data.dvc"
_PERSISTENT = ("pretrain", "finetune")  # these reuse their previous outputs
_WEIGHTS = (".safetensors",)
_THREADS = 4  # hashing releases the GIL; more threads would wait for the disk


class Recorded(NamedTuple):
    """A recorded file of an output or of data/; the listing of a directory is `DIRECTORY.dir`."""

    path: str
    """Relative to the project."""
    md5: str
    """MD5 of the content (with the suffix `.dir` for listings); the object's name in the cache and in remotes."""


def locked(project: Project) -> dict[str, str]:
    """Path → MD5 (with `.dir` for directories) of all inputs and outputs in dvc.lock, and of data.dvc; empty before the
    first run."""
    inputs = [stage.get("deps") for stage in _stages(project).values()]
    return _md5s(*inputs) | outputs(project)  # outputs last: they take precedence if a stage is stale


def inputs(project: Project, stage: str) -> dict[str, str]:
    """Path → MD5 of one stage's inputs."""
    return _md5s(_stages(project).get(stage, {}).get("deps"))


def outputs(project: Project, stage: str | None = None) -> dict[str, str]:
    """Path → MD5 of all stages' outputs and data/, or of one stage's outputs."""
    found = _md5s(*(content.get("outs") for name, content in _stages(project).items() if stage in (None, name)))
    return found | (_pinned(project) if stage is None else {})


def locked_params(project: Project, stage: str) -> dict[str, Any] | None:
    """Parameters that dvc.lock records for a stage: file → name → value; None if the stage has not run."""
    found = _stages(project).get(stage)
    return None if found is None else found.get("params") or {}


def pinned_data(project: Project) -> str:
    """MD5 that data.dvc pins; empty if nothing is pinned."""
    return next(iter(_pinned(project).values()), "")


def files_of(outputs: Mapping[str, str], objects: Path) -> Iterator[Recorded]:
    """Yield the files of outputs (path → MD5), the listing of each directory before its files.

    If a listing is missing from the cache at `objects` or damaged, only the listing itself is yielded.
    """
    for path, md5 in outputs.items():
        if not md5.endswith(".dir"):
            yield Recorded(path, md5)
            continue
        yield Recorded(f"{path}.dir", md5)
        listing = object_path(objects, md5)
        if listing.is_file() and md5_of(content := listing.read_bytes()) == md5.removesuffix(".dir"):
            yield from (Recorded(f"{path}/{file['relpath']}", file["md5"]) for file in json.loads(content))


def recorded_files(project: Project, output: str) -> dict[str, str] | None:
    """Return relative name → MD5 of the files of an output such as `build/pretrain`; None without a record in DVC.

    Raises:
        UserError: the listing in the cache is damaged.
    """
    digest, objects = outputs(project).get(output, ""), cache_of(project)
    path = object_path(objects, digest)
    if not digest.endswith(".dir") or not path.is_file():
        return None
    if md5_of(path) != digest.removesuffix(".dir"):
        raise UserError(
            f"{project.relative(path)}: the listing of {output} in DVC's cache is damaged; delete it, and"
            f" restore it with `dvc fetch {output}` or by running its stage"
        )
    _, *files = files_of({output: digest}, objects)
    return {file.path.removeprefix(f"{output}/"): file.md5 for file in files}


def digests(project: Project) -> dict[str, str]:
    """Path → MD5 of all that DVC has recorded: inputs and outputs of stages, data/ and the files in it."""
    files = [(path, recorded_files(project, path) or {}) for path in _pinned(project)]
    return locked(project) | {f"{path}/{name}": md5 for path, found in files for name, md5 in found.items()}


def cache_of(project: Project) -> Path:
    """Directory of the DVC cache's objects, which workspaces share."""
    settings = dvc_config(project.root)
    folder = Path(settings.get("cache", {}).get("dir") or project.root / ".dvc" / "cache")
    return (folder if folder.is_absolute() else project.root / ".dvc" / folder) / "files" / "md5"


def object_path(objects: Path, md5: str) -> Path:
    """Path of an object in the cache at `objects`."""
    return objects / md5[:2] / md5[2:]


def md5_of(content: bytes | IO[bytes] | Path) -> str:
    """MD5 of bytes, of an open file, or of the file at a path."""
    if isinstance(content, Path):
        with content.open("rb") as file:
            return md5_of(file)
    if isinstance(content, bytes):
        return hashlib.md5(content, usedforsecurity=False).hexdigest()
    digest = hashlib.md5(usedforsecurity=False)
    while block := content.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def md5s_of(paths: Mapping[Key, Path]) -> dict[Key, str]:
    """Key → MD5 of the file at its path, computed in parallel."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(paths, pool.map(md5_of, paths.values())))


def _stages(project: Project) -> dict[str, Any]:
    path = project.root / LOCK
    return (read_yaml(path).get("stages") or {}) if path.is_file() else {}


def _pinned(project: Project) -> dict[str, str]:
    path = project.root / PIN
    return _md5s(read_yaml(path).get("outs")) if path.is_file() else {}


def _md5s(*lists: list[dict[str, Any]] | None) -> dict[str, str]:
    return {entry["path"]: str(entry["md5"]) for entries in lists for entry in entries or [] if entry.get("md5")}


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
        for file, found in _read((file, project.root / file.path) for file in files if not file.md5.endswith(".dir"))
        if found != file.md5
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


def _read(places: Iterable[tuple[Recorded, Path]]) -> Iterable[tuple[Recorded, str]]:
    """Return each existing file with the MD5 of its content."""
    return md5s_of({file: path for file, path in places if path.is_file()}).items()


def note(project: Project, stage: str, folder: Path) -> str:
    """Record the files of `folder`, which is about to be published as build/`stage`.

    Damaged cache objects of these files are deleted, because DVC would trust them and replace the files by them.

    Returns:
        The MD5 that DVC will record for the directory.
    """
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = md5s_of(paths)
    path = _path(project, stage)
    # Also keep the previous record, in case of a kill before the publication.
    write_state(path, {"now": files, "before": read_state(path).get("now", {})})
    objects = cache_of(project)
    for file in damaged_in_cache(objects, [Recorded(f"build/{stage}/{name}", md5) for name, md5 in files.items()]):
        place = object_path(objects, file.md5)
        warn(
            f"cloze: {project.relative(place)}: the cached object of {file.path} was damaged;"
            " it is deleted and will be stored again"
        )
        place.unlink(missing_ok=True)
    return listing_md5(files)


def listing_md5(files: Mapping[str, str]) -> str:
    """MD5 of a directory as DVC computes it from its files (relative name → MD5)."""
    listing = [{"md5": md5, "relpath": name} for name, md5 in sorted(files.items())]
    return md5_of(json.dumps(listing, sort_keys=True).encode()) + ".dir"


def check_inputs(project: Project, stage: str) -> None:
    """Check the inputs of a stage below build/, and the previous outputs that it reuses, against their records.

    Weights are skipped for the leaderboard, which does not read them.

    Raises:
        UserError: a file is missing or differs; the message names it.
    """
    skipped = _WEIGHTS if stage == "leaderboard" else ()
    for dependency in read_yaml(project.root / "dvc.yaml").get("stages", {}).get(stage, {}).get("deps") or []:
        if (project.root / dependency).is_relative_to(project.build):
            check_recorded(project, dependency, skipped=skipped)
    if stage in _PERSISTENT:
        check_recorded(project, f"build/{stage}", may_lack_folders=True)


def check_folder(folder: Path) -> None:
    """Check a directory that is about to be used, if it is part of a stage's output."""
    folder = folder.resolve()
    try:
        project = Project.find(folder)
    except UserError:
        return
    if folder.is_relative_to(project.build) and folder != project.build:
        stage, *parts = folder.relative_to(project.build).parts
        check_recorded(project, f"build/{stage}", "/".join(parts))


def check_recorded(
    project: Project,
    output: str,
    folder: str = "",
    *,
    may_lack_folders: bool = False,
    skipped: tuple[str, ...] = (),
) -> bool:
    """Check that the files of `output` (below `folder`) match the stage's record or that of DVC.

    Args:
        output: output of a stage, such as `build/pretrain`.
        may_lack_folders: accept missing files whose whole directory is missing.
        skipped: endings of files that are not read.

    Returns:
        False if there is no record of such files.

    Raises:
        UserError: a file is missing or differs; the message names it.
    """
    begin = f"{folder}/" if folder else ""
    noted = read_state(_path(project, Path(output).name))
    records: list[dict[str, str]] = [noted[key] for key in ("now", "before") if noted.get(key)]
    in_force = [noted["now"]] if noted.get("now") else []
    found: dict[str, str] = {}

    def fault() -> tuple[str, str]:
        """Return the first file that is missing or differs, and the reason; two empty texts if there is none."""
        names = sorted(
            {name for files in records for name in files if name.startswith(begin) and not name.endswith(skipped)}
        )
        paths = {name: project.root / output / name for name in names}
        found.update(md5s_of({name: path for name, path in paths.items() if name not in found and path.is_file()}))
        for name in names:
            if name not in found:
                if all(name in files for files in in_force) and not (
                    may_lack_folders and not (project.root / _unit(output, name)).is_dir()
                ):
                    return name, "missing"
            elif not any(files.get(name) == found[name] for files in records):
                return name, f"its MD5 is {found[name]}"
        return "", ""

    if not records or fault()[0]:
        committed = recorded_files(project, output)
        if committed is not None:
            records.append(committed)
            in_force.append(committed)
        name, what = fault()
        if name:
            who = LOCK if committed is not None and name in committed else "the record of its stage"
            says = "names it" if what == "missing" else f"says {(committed or records[0]).get(name, 'another')}"
            hint = "" if what == "missing" else ": changed or damaged"
            raise UserError(
                f"{output}/{name}: {what}, though {who} {says}{hint}; remove {_unit(output, name)}, and"
                f" restore it with `dvc checkout --force {output}` or a run"
            )
    return bool(found)


def equals_lock(project: Project, output: str) -> bool:
    """Check whether all existing files of an output match dvc.lock; some may be missing."""
    recorded = recorded_files(project, output)
    if recorded is None:
        return False
    folder = project.root / output
    paths = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return all(recorded.get(path.relative_to(folder).as_posix()) == md5_of(path) for path in paths)


def _unit(output: str, name: str) -> str:
    """Directory to delete and restore as a whole: that of an encoder, or the parent of the file."""
    if Path(output).name == "pretrain" and "/" in name:
        return f"{output}/{name.split('/')[0]}"
    return str(Path(output, name).parent)


def _path(project: Project, stage: str) -> Path:
    return project.runs / "published" / f"{stage}.json"
