"""What DVC recorded of an output: its digest in dvc.lock, and the MD5 of each file in the cache's listing.

An output has no digests of its own (they would be a second statement of what dvc.lock says), so a published encoder is
checked against these before it is handed on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from model.errors import UserError
from tasks.project import Project
from tasks.yamls import read_yaml

LOCK = "dvc.lock"


def locked(project: Project) -> dict[str, str]:
    """path → MD5 (of a folder: with `.dir`) of everything that dvc.lock names, inputs of stages among it, and what
    data.dvc pins; empty before the first run."""
    found: dict[str, str] = {}
    stages = read_yaml(project.root / LOCK).get("stages", {}) if (project.root / LOCK).is_file() else {}
    for kind in ("deps", "outs"):  # where a stage is stale they differ, and what was made counts
        for stage in stages.values():
            found |= {entry["path"]: str(entry["md5"]) for entry in stage.get(kind, []) if entry.get("md5")}
    if (project.root / "data.dvc").is_file():
        for entry in read_yaml(project.root / "data.dvc").get("outs") or []:
            found[entry["path"]] = str(entry.get("md5", ""))
    return found


def recorded_files(project: Project, output: str) -> dict[str, str] | None:
    """Relative name → MD5 of the files of an output (`build/pretrain`); None where DVC has no record of it here.

    Raises:
        UserError: the cache's listing is damaged.
    """
    digest = locked(project).get(output, "")
    if not digest.endswith(".dir"):
        return None
    path = _cache(project) / digest[:2] / digest[2:]
    if not path.is_file():
        return None
    content = path.read_bytes()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != digest.removesuffix(".dir"):
        raise UserError(f"{path}: its MD5 is {found}: the DVC cache is damaged; `dvc fetch {output}` brings it again")
    entries: list[dict[str, Any]] = json.loads(content)
    return {entry["relpath"]: entry["md5"] for entry in entries}


def check_recorded(project: Project, output: str, folder: str) -> bool:
    """Refuse files below `output`/`folder` that are not those which DVC recorded; False where it has no record here.

    Raises:
        UserError: a file is missing or differs; the line names it.
    """
    files = recorded_files(project, output)
    if files is None:
        return False
    wanted = {name: md5 for name, md5 in files.items() if name.startswith(f"{folder}/")}
    for name, md5 in sorted(wanted.items()):
        path = project.root / output / name
        shown = project.relative(path)
        restore = f"restore it with `dvc checkout --force {output}`, or run its stage again"
        if not path.is_file():
            raise UserError(f"{shown}: missing, though {LOCK} names it; {restore}")
        found = _md5(path)
        if found != md5:
            raise UserError(f"{shown}: its MD5 is {found}, {LOCK} says {md5}: changed or damaged; {restore}")
    return bool(wanted)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _cache(project: Project) -> Path:
    """Where the repository's cache keeps objects by MD5; workspaces share it."""
    from dvc.repo import Repo

    repo = Repo(str(project.root))
    try:
        return Path(repo.cache.local.path)
    finally:
        repo.close()
