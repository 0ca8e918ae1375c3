"""`cloze export`, `promote`, `rollback` and `champion`."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

from flows.cli.context import project_here
from model.common.errors import UserError
from tasks.dvc.manifest import check_recorded
from tasks.leaderboard import history
from tasks.project.progress import say
from tasks.project.project import Project
from tasks.project.workspace import run_lock
from tasks.registry import promotion
from tasks.registry.artifacts import best_model, published_models
from tasks.registry.card_facts import gather
from tasks.registry.export import export_folder
from tasks.registry.gate import Verdict
from tasks.registry.model_card import render
from tasks.registry.registration import encoder_folder, register
from tasks.registry.versions import CHAMPION, Registry, Version


def export_here(what: str, directory: Path, encoder: str | None, task: str | None, onnx: bool, fill_mask: bool) -> None:
    """Export the champion, a task's best model or an encoder, and say what was written."""
    project = project_here()
    if task is not None and what != CHAMPION:
        raise UserError("--task goes with the champion: `cloze export champion DIR --task TASK`")
    if what == CHAMPION:
        differences, said = _export_champion(project, directory, task or "", onnx, fill_mask)
    elif encoder is not None or what in {one.benchmark for one in published_models(project.build / "finetune")}:
        model = best_model(project.build / "finetune", what, encoder)
        check_recorded(project, "build/finetune", f"{model.encoder}/{model.benchmark}/model")
        differences = export_folder(
            model.directory,
            directory,
            lambda folder: render(gather(project, model.encoder, folder, model.benchmark)),
            onnx,
            fill_mask,
        )
        said = str(model)
    else:
        source = encoder_folder(project, what)
        check_recorded(project, "build/pretrain", what)
        differences = export_folder(
            source, directory, lambda folder: render(gather(project, what, folder)), onnx, fill_mask
        )
        said = f"encoder {what}"
    say(f"{said}: {directory}")
    for name, difference in differences.items():
        say(f"{name}: outputs within {difference:.1e} of the model's (1e-4 is allowed)")


def _export_champion(
    project: Project, directory: Path, task: str, onnx: bool, fill_mask: bool
) -> tuple[dict[str, float], str]:
    registry = Registry(project)
    version = registry.by_alias(CHAMPION)
    if version is None:
        raise UserError("there is no champion yet; `cloze promote` makes one")
    with tempfile.TemporaryDirectory() as folder:
        source = registry.fetch(version, Path(folder), task)
        differences = export_folder(source, directory, None, onnx, fill_mask)
    return differences, f"champion {version}{f', {task}' if task else ''}"


def promote_here(what: str, reason: str, force: bool, dry_run: bool, as_json: bool) -> bool:
    """Register, judge and promote; whether it is (or with `dry_run` would be) the champion."""
    project = project_here()
    with run_lock(project, "cloze promote"):
        version = find_version(project, what)
        if dry_run:
            verdict = promotion.assess(project, version)
            _show(verdict, as_json)
            return verdict.promoted
        done = promotion.promote(project, version, reason, force)
    _show(done.verdict, as_json)
    if done.event is None:
        say(f"{version} is the champion already")
        return True
    say(f"{version}: {done.event.act}")
    return done.promoted


def find_version(project: Project, what: str) -> Version:
    """A registered version: by its number, or registered now: a run of the history, an encoder, or the best one.

    Raises:
        UserError: there is no such version, run or encoder.
    """
    if what.isdecimal():
        found = [version for version in Registry(project).versions() if version.number == int(what)]
        if not found:
            raise UserError(f"no version {what} of the encoder is registered; `cloze champion` shows what there is")
        return found[0]
    runs = [
        path.parent.name for path in project.leaderboards.glob("*/record.json") if path.parent.name.startswith(what)
    ]
    if what and len(runs) == 1 and not (project.build / "pretrain" / what).is_dir():
        record = history.read_record(project.leaderboards / runs[0] / "record.json")
        root = (project.home / record.workspace).resolve()
        if not (root / "build" / "leaderboard").is_dir():
            raise UserError(f"run {what}: its folder {root} is gone; run it again to have its models")
        return register(dataclasses.replace(project, root=root))
    return register(project, what)


def rollback_here(reason: str) -> None:
    """Roll back, and say who is champion now."""
    event = promotion.rollback(project_here(), reason)
    say(f"champion: version {event.version} ({event.encoder}), after version {event.before}")


def show_champion(as_json: bool) -> None:
    """The champion and the history."""
    project = project_here()
    version, events = promotion.champion(project), promotion.history(project)
    if as_json:
        present = None if version is None else {"version": version.number, "encoder": version.encoder, **version.tags}
        print(json.dumps({"champion": present, "history": [dataclasses.asdict(event) for event in events]}, indent=1))
        return
    print(f"champion  {version or 'none yet: `cloze promote` makes one'}")
    for event in events:
        after = "" if event.before is None else f" (was {event.before})"
        print(f"{event.when}  {event.act:<11}  version {event.version} {event.encoder}{after}  {event.reason}")


def _show(verdict: Verdict, as_json: bool) -> None:
    if as_json:
        print(json.dumps(verdict.record(), indent=1))
        return
    print(f"{verdict.challenger} against {verdict.champion or 'nobody (there is no champion yet)'}")
    for rule in verdict.rules:
        print(f"  {'pass' if rule.passed else 'FAIL'}  {rule.name}: {rule.reason}")
