"""Snapshot of a stage's parameters, code version and inputs, compared at its start and end.

DVC records parameters and inputs as they are when a stage *ends*. If params.yaml was edited meanwhile, dvc.lock would
be wrong. Therefore a stage takes a snapshot when it starts, and fails if it differs at the end.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from tasks.project.project import Project
from tasks.project.stage_versions import VERSIONS, code_version
from tasks.project.yaml_files import read_yaml

MAY_BE_EMPTY = ("data/tasks", "data/encoders")
"""Dependencies of stages that a run creates if they are missing: custom tasks and existing encoders."""


@dataclass(frozen=True)
class Snapshot:
    """Parameters, code version and inputs of a stage at one moment."""

    stage: str
    params: Any
    version: int
    inputs: dict[str, tuple[int, int, int]]

    @classmethod
    def take(cls, project: Project, stage: str) -> Snapshot:
        """Read everything that the stage depends on according to dvc.yaml.

        Raises:
            UserError: params.yaml or dvc.yaml cannot be read, or an input is missing.
        """
        declared = read_yaml(project.root / "dvc.yaml").get("stages", {}).get(stage)
        if declared is None:
            raise UserError(f"dvc.yaml: no stage '{stage}'")
        sections = [entry for entry in declared.get("params", []) if isinstance(entry, str)]
        values = read_yaml(project.params_path)
        inputs: dict[str, tuple[int, int, int]] = {}
        for dependency in declared.get("deps", []):
            inputs |= _manifest(project, project.root / dependency, stage)
        return cls(stage, {name: values.get(name) for name in sections}, code_version(project, stage), inputs)

    def verify(self, project: Project) -> None:
        """Check that nothing has changed since the snapshot.

        Raises:
            UserError: something changed while the stage ran; the message names it.
        """
        now = Snapshot.take(project, self.stage)
        changed = [name for name in self.params if self.params[name] != now.params.get(name)]
        if changed:
            raise UserError(
                f"params.yaml: '{changed[0]}' was edited while {self.stage} ran; nothing is recorded, run again"
            )
        if self.version != now.version:
            raise UserError(f"{VERSIONS}: '{self.stage}' was edited while it ran; nothing is recorded, run again")
        differing = sorted(set(self.inputs.items()) ^ set(now.inputs.items()))
        if differing:
            raise UserError(f"{differing[0][0]} was changed while {self.stage} ran; nothing is recorded, run again")


def missing_inputs(project: Project, stage: str) -> list[str]:
    """List the dependencies of a stage below data/ that do not exist."""
    raw = [path for path in _dependencies(project, stage) if Path(path).is_relative_to(project.data.name)]
    return [path for path in raw if path not in MAY_BE_EMPTY and not (project.root / path).exists()]


def check_declared(project: Project, stage: str, path: Path) -> None:
    """Check that an input exists and is declared in dvc.yaml.

    Raises:
        UserError: `path` does not exist, or is not below a dependency of the stage.
    """
    if not path.exists():
        advice = _near(project, path)
        raise UserError(f"{stage} reads {project.relative(path)}, which does not exist; {advice}")
    if not any(path.is_relative_to(project.root / dependency) for dependency in _dependencies(project, stage)):
        folder = project.relative(path.parent if path.parent != project.data else path)
        raise UserError(f"dvc.yaml: {stage} reads {project.relative(path)}; add `- {folder}` to the deps of that stage")


def _near(project: Project, path: Path) -> str:
    """Suggest a path in which the first part that does not exist is corrected."""
    missing = next(part for part in (*reversed(path.parents), path) if not part.exists())
    names = sorted(entry.name for entry in missing.parent.glob("[!.]*"))
    for name in difflib.get_close_matches(missing.name, names, n=1):
        return f"did you mean {project.relative(missing.parent / name / path.relative_to(missing))}?"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"{project.relative(missing.parent)} contains {shown or 'nothing'}"


def _dependencies(project: Project, stage: str) -> list[str]:
    declared: list[str] = read_yaml(project.root / "dvc.yaml").get("stages", {}).get(stage, {}).get("deps", [])
    return declared


def _manifest(project: Project, path: Path, stage: str) -> dict[str, tuple[int, int, int]]:
    """Size, modification time and inode of every file below `path`."""
    if not path.exists():
        raise UserError(
            f"{project.relative(path)} is missing, and {stage} reads it; `cloze run` creates missing outputs"
        )
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    manifest = {}
    for file in files:
        stat = file.stat()
        manifest[project.relative(file)] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return manifest
