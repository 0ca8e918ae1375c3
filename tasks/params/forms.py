"""Parameters from a form of the Prefect page, as a file for a run in a workspace of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from tasks.params.root import Params, StageParams
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml, write_yaml


def form_values(project: Project) -> dict[str, Any]:
    """The stages' sections of params.yaml with every default filled in, as a form shows them."""
    read = Params.parse(read_yaml(project.params_path), project.params_path.name)
    return read.model_dump(mode="json", include=set(StageParams.model_fields))


def params_file(project: Project, wanted: StageParams, name: str) -> Path | None:
    """`wanted` as a file below .cloze/; None where it says what params.yaml says.

    Only what differs from params.yaml is written differently: a default that the form has filled in is left out again,
    so that stages whose parameters are the same come from DVC's cache.
    """
    raw = read_yaml(project.params_path)
    after = wanted.model_dump(mode="json", include=set(StageParams.model_fields))
    stages = {section: value for section, value in raw.items() if section in after}
    values = raw | laid_over(stages, form_values(project), after)
    if values == raw:
        return None
    path = project.home / ".cloze" / "forms" / f"{checked_name(name)}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_yaml(path, values)
    return path


def checked_name(name: str) -> str:
    """`name`, if it can be a file's.

    Raises:
        UserError: it cannot.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,40}", name):
        raise UserError(f"name: '{name}': expected small letters, digits, '-', '_' and '.', at most 41")
    return name


def laid_over(raw: Any, before: Any, after: Any) -> Any:
    """`raw`, changed where `after` differs from `before`, which is `raw` with its defaults."""
    if after == before:
        return raw
    if isinstance(raw, dict) and isinstance(before, dict) and isinstance(after, dict):
        changed = {name: value for name, value in raw.items() if name in after}
        for name, value in after.items():
            if name in raw and name in before:
                changed[name] = laid_over(raw[name], before[name], value)
            elif name not in before or value != before[name]:
                changed[name] = value
        return changed
    lists = isinstance(raw, list) and isinstance(before, list) and isinstance(after, list)
    if lists and len(raw) == len(before) == len(after):
        return [laid_over(*three) for three in zip(raw, before, after, strict=True)]
    return after
