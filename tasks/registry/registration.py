"""Registering: the folders of an encoder and its fine-tuned models sent to MLflow, and their versions made.

The encoder's version comes last: with it a registration is whole. One that was cut off (a kill, a server that went
away) has none; the next registration from this place goes on where it stopped, or removes what nobody asks for.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.common.digests import CARD, write_digests
from model.common.errors import UserError
from model.common.files import digest_of, write_bytes
from model.common.run_dir import RunDir
from tasks.dvc.manifest import check_recorded
from tasks.leaderboard.comparisons import reference_of
from tasks.leaderboard.schema import RunRecord
from tasks.params.root import load_params
from tasks.project.project import Project
from tasks.project.workspace import staging, timestamp
from tasks.registry import candidates
from tasks.registry.card_facts import current_record, faults, gather
from tasks.registry.export import copy_published
from tasks.registry.model_card import render
from tasks.registry.versions import CHALLENGER, ENCODER, REGISTRATION, Registry, Version, file_name

_KIND = "cloze.kind"
_PLACE = "cloze.place"
_ABANDONED_SECONDS = 86_400  # no registration of another place takes so long


def register(project: Project, encoder: str = "") -> Version:
    """Register an encoder of the last run with its fine-tuned models, and give it the alias `challenger`.

    Args:
        encoder: its name; empty takes the best on the leaderboard of those that are not from scratch.

    Raises:
        UserError: there is no leaderboard or no such encoder, a published file is not the one that DVC recorded (the
            line names it), or MLflow cannot be reached.
    """
    record = current_record(project)
    if record is None:
        raise UserError("build/leaderboard: nothing to register; run `cloze run` first")
    encoder = encoder or best_encoder(record)
    registry = Registry(project)
    with staging(project, "registry") as folder:
        registration = _assemble(project, record, encoder, folder)
        numbers = registry.of_registration(registration)
        if registry.encoder_model not in numbers:
            tags = _tags(registry, record, encoder, registration, folder)
            numbers = _make_versions(registry, _sent(registry, tags, folder), numbers, tags, folder)
    with registry.faults():
        for model, number in numbers.items():
            registry.client.set_registered_model_alias(model, CHALLENGER, str(number))
    return next(one for one in registry.versions() if one.number == numbers[registry.encoder_model])


def best_encoder(record: RunRecord) -> str:
    """The best system of a leaderboard that is not from scratch.

    Raises:
        UserError: there is none.
    """
    found = reference_of([system for system in record.systems if system.kind != "scratch"], record.headline)
    if found is None:
        raise UserError(f"leaderboard {record.digest}: no encoder but those from scratch; name one of them")
    return found.name


def _assemble(project: Project, record: RunRecord, encoder: str, folder: Path) -> str:
    """Lay out folder/encoder and folder/models/TASK; returns the registration's digest."""
    source, finetuned = encoder_folder(project, encoder), project.build / "finetune" / encoder
    check_recorded(project, "build/pretrain", encoder)
    parts: dict[str, Any] = {ENCODER: _lay_out(source, folder / ENCODER)}
    facts = gather(project, encoder, folder / ENCODER)
    found = faults(facts)
    candidate = candidates.of_record(record, encoder, project.leaderboards, project.build / "finetune", found)
    candidates.write(candidate, folder / ENCODER)
    write_digests(folder / ENCODER)
    write_bytes(folder / ENCODER / CARD, render(facts).encode())
    for task in candidate.cells:
        if not RunDir(finetuned / task).model.is_dir():
            continue
        check_recorded(project, "build/finetune", f"{encoder}/{task}/model")
        target = folder / "models" / file_name(task)
        parts[task] = _lay_out(RunDir(finetuned / task).model, target)
        write_bytes(target / CARD, render(gather(project, encoder, target, task)).encode())
    return digest_of([encoder, candidate.digest, list(candidate.card_faults), parts])


def _lay_out(source: Path, target: Path) -> dict[str, str]:
    copy_published(source, target)
    return write_digests(target)


def encoder_folder(project: Project, encoder: str) -> Path:
    """Where an encoder of params.yaml lies: in build/pretrain, or an external one below data/.

    Raises:
        UserError: it is not there.
    """
    folder = project.build / "pretrain" / encoder
    external = {one.name: one.path for one in load_params(project.params_path).finetune.encoders}
    if not (folder / "config.json").is_file() and encoder in external:
        folder = project.data / external[encoder]
    if not (folder / "config.json").is_file():
        there = ", ".join(sorted(path.parent.name for path in project.build.glob("pretrain/*/config.json"))) or "none"
        raise UserError(f"no encoder '{encoder}' in {project.relative(project.build / 'pretrain')}; there are {there}")
    return folder


def _tags(registry: Registry, record: RunRecord, encoder: str, registration: str, folder: Path) -> dict[str, str]:
    """What run and versions carry."""
    system = record.system(encoder)
    assert system is not None
    return {
        REGISTRATION: registration,
        _PLACE: digest_of([platform.node(), str(registry.project.home)]),
        "cloze.encoder": encoder,
        "cloze.record": record.digest,
        "cloze.run": record.pipeline,
        "cloze.system_digest": system.digest,
        "cloze.git_commit": record.git_commit,
        "cloze.data": record.data,
        "cloze.registered": timestamp(),
        **({} if system.average is None else {"cloze.average": f"{system.average:.4f}"}),
        **{f"cloze.dvc.{path}": md5 for path, md5 in gather(registry.project, encoder, folder).outputs.items()},
    }


def _sent(registry: Registry, tags: Mapping[str, str], folder: Path) -> Any:
    """The MLflow run that holds `folder`: one that was sent whole and cut off before its versions, or a new one."""
    client = registry.client
    with registry.faults():
        for run in _halves(registry, tags[_PLACE]):
            if run.data.tags[REGISTRATION] == tags[REGISTRATION] and run.info.status == "FINISHED":
                return run
            for version in client.search_model_versions(f"run_id = '{run.info.run_id}'"):
                client.delete_model_version(version.name, version.version)
            client.delete_run(run.info.run_id)
        name = f"registered {tags['cloze.encoder']} @{tags[REGISTRATION][:6]}"
        run = client.create_run(registry.experiment, tags={**tags, "mlflow.runName": name, _KIND: "registration"})
        client.log_artifacts(run.info.run_id, str(folder))
        client.set_terminated(run.info.run_id)
    return run


def _halves(registry: Registry, place: str) -> list[Any]:
    """Runs of registrations that were cut off: of this place, where one at a time registers, or so old that nobody is
    at work on them. Those that can be gone on with come first."""
    runs = registry.client.search_runs([registry.experiment], f"tags.`{_KIND}` = 'registration'", max_results=1000)
    whole = {version.run_id for version in registry.versions()}
    latest = 1000 * (time.time() - _ABANDONED_SECONDS)
    found = [
        run
        for run in runs
        if run.info.run_id not in whole
        and REGISTRATION in run.data.tags
        and (run.data.tags.get(_PLACE) == place or run.info.start_time < latest)
    ]
    return sorted(found, key=lambda run: run.info.status != "FINISHED")


def _make_versions(
    registry: Registry, run: Any, numbers: Mapping[str, int], tags: Mapping[str, str], folder: Path
) -> dict[str, int]:
    """The versions that are missing among `numbers`; all of them, by the names of their models."""
    client = registry.client
    folders = {path.name: f"models/{path.name}" for path in sorted(folder.glob("models/*"))} | {ENCODER: ENCODER}
    made = dict(numbers)
    with registry.faults():
        for task, path in folders.items():
            model = registry.model_of(task)
            if model in made:
                continue
            if registry.registered(model) is None:
                client.create_registered_model(model, description=f"Cloze: {task}")
            version = client.create_model_version(
                model,
                f"{run.info.artifact_uri}/{path}",
                run.info.run_id,
                tags={**tags, **({} if task == ENCODER else {"cloze.benchmark": task})},
                description=(folder / path / CARD).read_text(encoding="utf-8")[:5000].split("---\n", 2)[-1],
            )
            made[model] = int(version.version)
    return made
