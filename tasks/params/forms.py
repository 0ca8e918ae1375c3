"""Parameters from a form in the Prefect UI, written to a file for a run in a separate workspace."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from model.common.errors import UserError
from model.common.yaml_text import parse_yaml
from tasks.params.finetune import BenchmarkParams
from tasks.params.root import Params, StageParams, load_params
from tasks.project.project import Project
from tasks.project.workspace import checked_name
from tasks.project.yaml_files import read_yaml, write_yaml

PARAMS = "params.yaml"


def form_values(project: Project) -> dict[str, Any]:
    """Return the stages' sections of params.yaml with all defaults, as shown in the form."""
    read = Params.parse(read_yaml(project.params_path), project.params_path.name)
    return read.model_dump(mode="json", include=set(StageParams.model_fields))


def base_files(project: Project) -> list[str]:
    """List the parameter files that an experiment can start from: params.yaml and those in params/."""
    return [PARAMS, *sorted(project.relative(path) for path in (project.root / "params").glob("*.yaml"))]


def experiment_values(
    project: Project, base: str, overrides: Sequence[str], tree: StageParams | None = None
) -> dict[str, Any]:
    """Return the content of a parameter file for an experiment.

    Args:
        base: one of `base_files`.
        overrides: changes such as `finetune.seeds=[1, 2]`.
        tree: all parameters, instead of a base file.

    Raises:
        UserError: there is no such base file, it is combined with `tree`, or a change is invalid.
    """
    if base not in (known := base_files(project)):
        nearest = difflib.get_close_matches(base, known, n=1, cutoff=0.4)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"available: {', '.join(known)}"
        raise UserError(f"base: no parameter file '{base}'; {hint}")
    if tree is not None and base != PARAMS:
        raise UserError(f"params: cannot be combined with base ({base}); set params to None, or base to {PARAMS}")
    values = read_yaml(project.root / base) if tree is None else with_params(project, tree)
    return with_overrides(values, overrides, base)


def with_overrides(values: dict[str, Any], overrides: Sequence[str], base: str) -> dict[str, Any]:
    """Change settings in `values`, the content of the parameter file `base`; returns `values`.

    Raises:
        UserError: a change is invalid.
    """
    for line in overrides:
        path, equals, text = line.partition("=")
        shown = " ".join(line[:80].split()) + "..." * (len(line) > 80)
        if not equals:
            raise UserError(f"overrides: '{shown}': expected a setting and its value, such as finetune.seeds=[1, 2]")
        _set(values, path.strip(), parse_yaml(text, f"overrides: '{shown}'"), shown)
    Params.parse(values, f"{base} with overrides" if overrides else base)
    return values


def task_values(
    project: Project,
    task: str,
    seeds: Sequence[int] | None = None,
    recipe: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """Return the content of params.yaml with `task` as its only benchmark or custom task.

    Args:
        seeds: seeds instead of those in params.yaml.
        recipe: settings to change; the grid then does not search over them.
        grid: values to search over, instead of those in params.yaml.

    Raises:
        UserError: params.yaml does not list the task, or a setting is invalid.
    """
    recipe = recipe or {}
    settings = load_params(project.params_path)
    finetune = settings.finetune.with_tasks(project.data)
    if task not in finetune.benchmarks:
        near = difflib.get_close_matches(task, finetune.benchmarks, n=1)
        known = f"did you mean '{near[0]}'?" if near else f"it lists {', '.join(finetune.benchmarks)}"
        raise UserError(f"task: params.yaml does not list '{task}'; {known}")
    own = finetune.benchmarks[task] or BenchmarkParams()
    searched = finetune.grid_of(task) if grid is None else grid
    tried = {name: list(values) for name, values in searched.items() if name not in recipe}
    values = settings.model_dump(mode="json")
    values["finetune"] |= {
        "benchmarks": {task: {"recipe": {**own.recipe, **recipe}, "grid": tried}},
        "tasks": [name for name in settings.finetune.tasks if PurePosixPath(name).stem == task],
        "seeds": list(seeds or settings.finetune.seeds),
    }
    return with_params(project, Params.parse(values, f"fine-tuning on {task}"))


def _set(values: dict[str, Any], path: str, value: Any, line: str) -> None:
    """Set the value at a dotted path. Parts name keys, which may contain dots, or elements of lists by
    `name` or position."""
    place: Any = values
    while True:
        if isinstance(place, list):
            named = {str(index): index for index in range(len(place))}
            named |= {
                str(one["name"]): index for index, one in enumerate(place) if isinstance(one, dict) and "name" in one
            }
            part = _first_part(path, named)
            if part not in named:
                nearest = difflib.get_close_matches(part, named, n=1, cutoff=0.4)
                hint = f"did you mean '{nearest[0]}'?" if nearest else f"it has {', '.join(named) or 'no elements'}"
                raise UserError(f"overrides: '{line}': no '{part}' in the list; {hint}")
            key: Any = named[part]
        else:
            key = part = _first_part(path, place)
        if part == path:
            place[key] = value
            return
        path = path[len(part) + 1 :]
        if isinstance(place, dict) and place.get(key) is None:
            place[key] = {}
        place[key] = copy.copy(place[key])  # which may be that of another setting, too, by an alias
        place = place[key]
        if not isinstance(place, dict | list):
            raise UserError(f"overrides: '{line}': {part} is a value ({place!r}), not a group of settings")


def _first_part(path: str, known: Iterable[str]) -> str:
    """Return the longest known key at the beginning of `path`, or its part before the first dot."""
    found = [key for key in known if f"{path}.".startswith(f"{key}.")]
    return max(found, key=len, default=path.partition(".")[0])


def with_params(project: Project, wanted: StageParams) -> dict[str, Any]:
    """Return the content of params.yaml with the sections in `wanted`.

    Defaults that the form has filled in are omitted again, so that stages with unchanged parameters come from DVC's
    cache.
    """
    raw = read_yaml(project.params_path)
    after = wanted.model_dump(mode="json", include=set(StageParams.model_fields))
    stages = {section: value for section, value in raw.items() if section in after}
    return raw | merge_changes(stages, form_values(project), after)


def params_file(project: Project, values: dict[str, Any], name: str, folder: Path | None = None) -> Path | None:
    """Write parameters to a file in `folder` (default: below .cloze/); returns None if they equal params.yaml."""
    if values == read_yaml(project.params_path):
        return None
    path = (folder or project.home / ".cloze" / "forms") / f"{checked_name(name)}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_yaml(path, values)
    return path


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
