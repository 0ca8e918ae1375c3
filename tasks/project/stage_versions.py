"""The code versions of the stages, as the project records them in versions.yaml, and as the installed release has them.

DVC reads the file: the number of a stage is one of its parameters.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from tasks import versions
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml

VERSIONS = "versions.yaml"
INSTALLED: dict[str, int] = {name: one for name, one in vars(versions).items() if isinstance(one, int)}
"""Stage → code version in the installed release."""
_RELEASE = "cloze"
_HEADER = """\
# Written by `cloze init` and `cloze upgrade`; commit it. A stage runs again when its number changes, because it then
# gives other outputs from the same inputs.
"""


def installed_release() -> str:
    """Release of Cloze, such as 0.1.0."""
    return version("cloze")


def write_versions(folder: Path) -> None:
    """Record the installed release and its code versions in a project."""
    lines = [f"{_RELEASE}: {installed_release()}", *(f"{stage}: {number}" for stage, number in INSTALLED.items())]
    (folder / VERSIONS).write_text(_HEADER + "\n".join(lines) + "\n", encoding="utf-8")


def recorded_release(project: Project) -> str:
    """Release of Cloze that the project records; empty if it records none."""
    return str(_recorded(project).get(_RELEASE, ""))


def differing_versions(project: Project) -> dict[str, tuple[int | None, int]]:
    """Stage → recorded and installed code version, of the stages for which they differ."""
    recorded = _recorded(project)
    return {name: (recorded.get(name), number) for name, number in INSTALLED.items() if recorded.get(name) != number}


def check_versions(project: Project) -> None:
    """Check that the installed release has the code versions that the project records.

    Raises:
        UserError: it has others; the project has to be upgraded, or the recorded release installed.
    """
    for stage, (before, now) in differing_versions(project).items():
        recorded = recorded_release(project)
        other = f", or install Cloze {recorded} again" if recorded not in ("", installed_release()) else ""
        raise UserError(
            f"{VERSIONS} records {f'version {before}' if before else 'no version'} of {stage}, but the installed Cloze"
            f" {installed_release()} has version {now}; run `cloze upgrade`{other}"
        )


def code_version(project: Project, stage: str) -> int:
    """Return the code version of a stage that the project records.

    Raises:
        UserError: there is none.
    """
    found = _recorded(project).get(stage)
    if not isinstance(found, int):
        raise UserError(f"{VERSIONS}: no version of the stage '{stage}'; run `cloze upgrade`")
    return found


def _recorded(project: Project) -> dict[str, Any]:
    path = project.root / VERSIONS
    return read_yaml(path) if path.exists() else {}
