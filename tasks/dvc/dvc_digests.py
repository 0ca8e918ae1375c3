"""Hashes recorded by DVC: of outputs in dvc.lock and data.dvc, and of their files in the cache's directory listings.

DVC identifies objects by MD5, which detects corruption and truncation, but not deliberate manipulation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from model.common.errors import UserError
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml

Key = TypeVar("Key")
LOCK = "dvc.lock"
PIN = "data.dvc"
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


def outputs(project: Project, stage: str | None = None) -> dict[str, str]:
    """Path → MD5 of all stages' outputs and data/, or of one stage's outputs."""
    found = _md5s(*(content.get("outs") for name, content in _stages(project).items() if stage in (None, name)))
    return found | (_pinned(project) if stage is None else {})


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


def cache_of(project: Project) -> Path:
    """Directory of the DVC cache's objects, which workspaces share."""
    from dvc.config import Config

    settings = Config(dvc_dir=str(project.root / ".dvc"), validate=False)
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
