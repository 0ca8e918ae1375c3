"""Create a project from the files that come with Cloze, and bring it up to date with the installed release.

A clone of the repository is a project, too: it has the same files, from which the release is built.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from model.common.errors import UserError
from tasks.project.project import Project, check_path
from tasks.project.stage_versions import (
    VERSIONS,
    differing_versions,
    installed_release,
    recorded_release,
    write_versions,
)
from tasks.project.yaml_files import read_yaml

_ASSETS = Path(__file__).parent / "assets"
_PACKAGED = Path(__file__).parent / "template"  # of an installation that is not editable; see pyproject.toml
_SOURCE = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[2]
FILES = (
    *(".dvc/.gitignore", ".dvc/config", ".dvcignore", ".gitignore", "constraints.txt"),
    *("data.dvc", "dvc.yaml", "params", "params.yaml", "prefect.yaml"),
)
_UPGRADED = ("constraints.txt", "params/params.schema.json", "params/task.schema.json")
"""Files that users do not edit."""
_OWN = {"README.md": "README.md", ".github/workflows/cloze.yml": "workflow.yml"}  # file of a new project: asset


class Upgrade(NamedTuple):
    """The changes that `upgrade` made, and those that it leaves to the user."""

    before: str
    """Release of Cloze that the project recorded; empty if it recorded none."""
    after: str
    versions: dict[str, tuple[int | None, int]]
    """Code version before and after, by stage."""
    missing: list[str]
    """Entries that the project's dvc.yaml lacks, a line each."""


def create(folder: Path) -> bool:
    """Write the files of a new project, and make `folder` a git repository unless it is one.

    Returns True if the git repository is new.

    Raises:
        UserError: one of the files exists, a project cannot have this path, or git fails.
    """
    check_path(folder.resolve())
    existing = [name for name in (*FILES, *_OWN, VERSIONS) if (folder / name).exists()]
    if existing:
        raise UserError(f"{folder}: {', '.join(existing)} would be overwritten; pass another directory")
    for name in FILES:
        _copy(name, folder)
    for name, asset in _OWN.items():
        text = (_ASSETS / asset).read_text(encoding="utf-8")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("NAME", folder.name).replace("RELEASE", installed_release()))
    (folder / "data").mkdir(exist_ok=True)
    write_versions(folder)
    if (folder / ".git").exists():
        return False
    done = subprocess.run(["git", "init", "--quiet", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"git init: {' '.join(done.stderr.split())}")
    return True


def upgrade(project: Project) -> Upgrade:
    """Record the installed release and its code versions in the project, and update the files that users do not edit.

    In a clone of the repository, only versions.yaml changes.
    """
    found = Upgrade(
        recorded_release(project), installed_release(), differing_versions(project), _missing(project.root / "dvc.yaml")
    )
    write_versions(project.root)
    if project.root != _SOURCE:
        for name in _UPGRADED:
            _copy(name, project.root)
    return found


def _copy(name: str, folder: Path) -> None:
    source, target = _SOURCE / name, folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def _missing(path: Path) -> list[str]:
    """List the entries of the shipped dvc.yaml that another one lacks."""
    shipped, ours = read_yaml(_SOURCE / "dvc.yaml"), read_yaml(path)
    found = [f"{kind}: {name}" for kind in ("metrics", "plots", "artifacts") for name in _lacking(shipped, ours, kind)]
    for stage, content in shipped["stages"].items():
        present = ours.get("stages", {}).get(stage)
        if present is None:
            found.append(f"stages: {stage}")
            continue
        kinds = ("deps", "params", "outs")
        found += [f"stages: {stage}: {kind}: {name}" for kind in kinds for name in _lacking(content, present, kind)]
    return found


def _lacking(shipped: dict[str, Any], ours: dict[str, Any], kind: str) -> list[str]:
    present = _names(ours.get(kind, []))
    return [name for name in _names(shipped.get(kind, [])) if name not in present]


def _names(entries: Any) -> list[str]:
    """Paths and names in a list of DVC, whose entries are texts or mappings from a text to its options."""
    return [name for entry in entries for name in ([entry] if isinstance(entry, str) else entry)]
