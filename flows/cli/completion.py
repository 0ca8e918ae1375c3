"""Names that the shell completes: encoders, tasks, systems and runs of the project in the current directory.

They are read from params.yaml, the leaderboards and the workspaces without importing what commands need, because the
shell waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import click
import yaml

import model.benchmarks
from model.common.errors import UserError
from model.common.state_files import read_state
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _encoders(project: Project) -> Iterator[str]:
    """Encoders of the parameters, and the pre-trainings of those with several seeds."""
    params = read_yaml(project.params_path)
    for stage in ("pretrain", "finetune"):
        yield from (one["name"] for one in (params.get(stage) or {}).get("encoders") or ())
    yield from (path.name for path in (project.build / "pretrain").glob("*") if path.is_dir())


def _tasks(project: Project) -> Iterator[str]:
    """Benchmarks of the parameters (default: all) and custom tasks."""
    finetune = read_yaml(project.params_path).get("finetune") or {}
    yield from finetune.get("benchmarks") or _benchmarks()
    yield from (PurePosixPath(name).stem for name in finetune.get("tasks") or ())


def _benchmarks() -> Iterator[str]:
    path = Path(str(model.benchmarks.__file__)).with_name("table.yaml")
    yield from (row["name"] for row in yaml.safe_load(path.read_text(encoding="utf-8"))["benchmarks"])


def _systems(project: Project) -> Iterator[str]:
    """Measured systems of the last leaderboard, and of each recorded run as SYSTEM@RUN."""
    for system in read_state(project.build / "leaderboard" / "leaderboard.json", may_move=False).get("systems", ()):
        if system["kind"] != "quoted":
            yield system["name"]
    for record in _records(project):
        yield from (f"{system['name']}@{record['id']}" for system in record.get("systems", ()))


def _runs(project: Project) -> Iterator[str]:
    """Ids of the recorded runs."""
    yield from (record["id"] for record in _records(project))


def _workspaces(project: Project) -> Iterator[str]:
    yield from (path.name for path in project.workspaces.glob("*-*"))


def _records(project: Project) -> Iterator[Mapping[str, Any]]:
    for path in project.leaderboards.glob("*/record.json"):
        record = read_state(path, may_move=False)
        if record.get("id"):
            yield record


def _completed(names: Callable[[Project], Iterator[str]]) -> Complete:
    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        try:
            found = list(names(Project.find()))
        except (UserError, OSError, LookupError, TypeError, AttributeError):  # what is damaged completes to nothing
            return []
        return sorted({name for name in found if name.startswith(incomplete)})

    return complete


def _models(project: Project) -> Iterator[str]:
    """Everything that `cloze export` takes."""
    yield from ("champion", "best")
    yield from _encoders(project)
    yield from _tasks(project)


encoders = _completed(_encoders)
models = _completed(_models)
runs = _completed(_runs)
systems = _completed(_systems)
tasks = _completed(_tasks)
workspaces = _completed(_workspaces)
