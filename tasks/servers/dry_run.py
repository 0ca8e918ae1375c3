"""`cloze run --dry-run`: list what a run would do, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from model.common.errors import UserError
from tasks.dvc.graph import StageStatus
from tasks.dvc.stage_snapshot import code_version
from tasks.finetune.plan import Planner, find_encoders
from tasks.finetune.scheduler import JobScheduler
from tasks.params.root import load_params
from tasks.pretrain.pretrain import finished as pretrained
from tasks.pretrain.pretrain import plan_encoders
from tasks.project.project import Project


def describe(project: Project, statuses: Sequence[StageStatus]) -> Iterator[str]:
    """Yield one line per stage, and one line per job if the inputs of the stage exist."""
    upstream = ""
    for status in statuses:
        if status.reasons:
            yield f"{status.name:<12} would run: {'; '.join(status.reasons)}"
        elif upstream:
            yield f"{status.name:<12} would run if the output of {upstream} changes"
        else:
            yield f"{status.name:<12} up to date"
        if status.reasons and not upstream:
            yield from _jobs(project, status.name)
        upstream = upstream or (status.name if status.reasons else "")


def _jobs(project: Project, stage: str) -> list[str]:
    params, build, version = load_params(project.params_path), project.build, code_version(project, stage)
    try:
        if stage == "pretrain":
            encoders = plan_encoders(
                params.pretrain, build / "tokens", build / "tokenizer", project.data, project.runs / stage, version
            )
            names = [one.name for one in encoders if pretrained(one, build / stage) is None]
        elif stage == "finetune":
            found = find_encoders(params.finetune.encoders, build / "pretrain", project.data)
            planner = Planner(params.finetune, found, project.data, project.runs / stage, version)
            names = [one.name for one in JobScheduler(planner, project.runs / stage, build / stage).ready()]
        else:
            return []
    except (FileNotFoundError, UserError) as error:
        return [f"{'':<12}   (jobs not known yet: {error})"]
    return [f"{'':<12}   {name}" for name in names] or [f"{'':<12}   all jobs have results"]
