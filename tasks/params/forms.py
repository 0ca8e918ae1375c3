"""Parameters from a form in the Prefect UI, written to a file for a run in a separate workspace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from tasks.params.root import Params, StageParams
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml, write_yaml


def form_values(project: Project) -> dict[str, Any]:
    """Return the stages' sections of params.yaml with all defaults, as shown in the form."""
    read = Params.parse(read_yaml(project.params_path), project.params_path.name)
    return read.model_dump(mode="json", include=set(StageParams.model_fields))


def params_file(project: Project, wanted: StageParams, name: str) -> Path | None:
    """Write `wanted` to a file below .cloze/; returns None if it equals params.yaml.

    Defaults that the form has filled in are omitted again, so that stages with unchanged parameters come from DVC's
    cache.
    """
    raw = read_yaml(project.params_path)
    after = wanted.model_dump(mode="json", include=set(StageParams.model_fields))
    stages = {section: value for section, value in raw.items() if section in after}
    values = raw | merge_changes(stages, form_values(project), after)
    if values == raw:
        return None
    path = project.home / ".cloze" / "forms" / f"{checked_name(name)}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_yaml(path, values)
    return path


def checked_name(name: str) -> str:
    """Check that `name` is a valid file name and return it.

    Raises:
        UserError: it is not valid.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,40}", name):
        raise UserError(f"name: '{name}': expected at most 41 lowercase letters, digits, '-', '_' and '.'")
    return name


def merge_changes(raw: Any, before: Any, after: Any) -> Any:
    """Apply the differences between `before` (`raw` with defaults) and `after` to `raw`."""
    if after == before:
        return raw
    if isinstance(raw, dict) and isinstance(before, dict) and isinstance(after, dict):
        changed = {name: value for name, value in raw.items() if name in after}
        for name, value in after.items():
            if name in raw and name in before:
                changed[name] = merge_changes(raw[name], before[name], value)
            elif name not in before or value != before[name]:
                changed[name] = value
        return changed
    lists = isinstance(raw, list) and isinstance(before, list) and isinstance(after, list)
    if lists and len(raw) == len(before) == len(after):
        return [merge_changes(*three) for three in zip(raw, before, after, strict=True)]
    return after
