"""Register an encoder: upload it and its fine-tuned models to MLflow, and create their versions.

The encoder's version is created last and completes a registration. If a registration was interrupted, the next one from
the same project on the same machine resumes it, or removes it if it is not needed.
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
from tasks.dvc.integrity import check_recorded
from tasks.leaderboard.comparisons import reference_of
from tasks.leaderboard.schema import RunRecord
from tasks.params.root import load_params
from tasks.project.project import Project
from tasks.project.workspace import staging, timestamp
from tasks.registry.export import copy_published
from tasks.registry.gate import candidate_of, write_candidate
from tasks.registry.mlflow_registry import CHALLENGER, ENCODER, REGISTRATION, Registry, Version, file_name
from tasks.registry.model_card import current_record, faults, gather, render

_KIND = "cloze.kind"
_ORIGIN = "cloze.place"
_ABANDONED_SECONDS = 86_400  # no registration takes this long


def register(project: Project, encoder: str = "") -> Version:
    """Register an encoder of the last run with its fine-tuned models, and give it the alias `challenger`.

    Args:
        encoder: its name; empty for the best on the leaderboard that is not from scratch.

    Raises:
        UserError: there is no leaderboard or no such encoder, a published file is not the one that DVC recorded, or
            MLflow is not reachable.
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
            numbers = _make_versions(registry, _upload(registry, tags, folder), numbers, tags, folder)
    with registry.errors():
        for model, number in numbers.items():
            registry.client.set_registered_model_alias(model, CHALLENGER, str(number))
    return next(one for one in registry.versions() if one.number == numbers[registry.encoder_model])


def best_encoder(record: RunRecord) -> str:
    """Find the best system of a leaderboard that is not from scratch.

    Raises:
        UserError: there is none.
    """
    found = reference_of([system for system in record.systems if system.kind != "scratch"], record.headline)
    if found is None:
        raise UserError(f"leaderboard {record.digest}: all encoders are from scratch; name one of them")
    return found.name


def _assemble(project: Project, record: RunRecord, encoder: str, folder: Path) -> str:
    """Write folder/encoder and folder/models/TASK; returns the digest of the registration."""
    source, finetuned = encoder_folder(project, encoder), project.build / "finetune" / encoder
    check_recorded(project, "build/pretrain", encoder)
    parts: dict[str, Any] = {ENCODER: _copy(source, folder / ENCODER)}
    facts = gather(project, encoder, folder / ENCODER)
    found = faults(facts)
    candidate = candidate_of(record, encoder, project.leaderboards, project.build / "finetune", found)
    write_candidate(candidate, folder / ENCODER)
    write_digests(folder / ENCODER)
    write_bytes(folder / ENCODER / CARD, render(facts).encode())
    for task in candidate.cells:
        if not RunDir(finetuned / task).model.is_dir():
            continue
        check_recorded(project, "build/finetune", f"{encoder}/{task}/model")
        target = folder / "models" / file_name(task)
        parts[task] = _copy(RunDir(finetuned / task).model, target)
        write_bytes(target / CARD, render(gather(project, encoder, target, task)).encode())
    return digest_of([encoder, candidate.digest, list(candidate.card_faults), parts])


def _copy(source: Path, target: Path) -> dict[str, str]:
    copy_published(source, target)
    return write_digests(target)


def encoder_folder(project: Project, encoder: str) -> Path:
    """Find the directory of an encoder of params.yaml: in build/pretrain, or an external one in data/.

    Raises:
        UserError: it does not exist.
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
    """Tags of the MLflow run and of the versions."""
    system = record.system(encoder)
    assert system is not None
    return {
        REGISTRATION: registration,
        _ORIGIN: digest_of([platform.node(), str(registry.project.home)]),
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


def _upload(registry: Registry, tags: Mapping[str, str], folder: Path) -> Any:
    """Upload `folder` to a new MLflow run, or return the run of an interrupted registration that has all files."""
    client = registry.client
    with registry.errors():
        for run in _interrupted(registry, tags[_ORIGIN]):
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


def _interrupted(registry: Registry, origin: str) -> list[Any]:
    """Runs of interrupted registrations, those that can be resumed first.

    They are of this project on this machine, where only one registration runs at a time, or older than a day.
    """
    runs = registry.client.search_runs([registry.experiment], f"tags.`{_KIND}` = 'registration'", max_results=1000)
    whole = {version.run_id for version in registry.versions()}
    latest = 1000 * (time.time() - _ABANDONED_SECONDS)
    found = [
        run
        for run in runs
        if run.info.run_id not in whole
        and REGISTRATION in run.data.tags
        and (run.data.tags.get(_ORIGIN) == origin or run.info.start_time < latest)
    ]
    return sorted(found, key=lambda run: run.info.status != "FINISHED")


def _make_versions(
    registry: Registry, run: Any, numbers: Mapping[str, int], tags: Mapping[str, str], folder: Path
) -> dict[str, int]:
    """Create the versions that are missing in `numbers`; returns the numbers of all, by model name."""
    client = registry.client
    folders = {path.name: f"models/{path.name}" for path in sorted(folder.glob("models/*"))} | {ENCODER: ENCODER}
    made = dict(numbers)
    with registry.errors():
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
