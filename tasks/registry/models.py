"""Registered versions in MLflow: an encoder and its fine-tuned models, as folders of safetensors with card and digests.

A registration is one MLflow run whose artifacts are the folders, and a version of MODEL-encoder and of each MODEL-TASK
that points into them. Versions of one registration carry its digest as a tag, so registering the same again finds them.
No version holds a pickle, and none needs MLflow's model flavours to be read.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.digests import CARD, check_digests, write_digests
from model.digests import NAME as DIGESTS
from model.errors import UserError
from model.files import digest_of, write_bytes
from model.redaction import redacted
from tasks.forward import connect
from tasks.leaderboard.compare import champion_of
from tasks.leaderboard.history import RunRecord
from tasks.params import load_params
from tasks.project import Project
from tasks.registry import candidates
from tasks.registry.card import render
from tasks.registry.card_facts import current_record, faults, gather
from tasks.registry.export import copy_published
from tasks.storage.publications import check_recorded
from tasks.workspace import staging

ENCODER = "encoder"
CHAMPION = "champion"
CHALLENGER = "challenger"
REGISTRATION = "cloze.registration"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class Version:
    """A version of an encoder, as MLflow has it."""

    model: str
    """MODEL-encoder."""
    number: int
    registration: str
    """What the versions of its fine-tuned models carry, too."""
    run_id: str
    """The MLflow run whose artifacts it is."""
    tags: dict[str, str]

    @property
    def encoder(self) -> str:
        """The encoder's name in params.yaml."""
        return self.tags.get("cloze.encoder", "")

    def __str__(self) -> str:
        return f"{self.encoder} (version {self.number} of {self.model})"


class Registry:
    """MLflow's registry as this project uses it.

    Raises:
        UserError: (from every method) MLflow cannot be reached, or refuses.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.settings = load_params(project.params_path).promotion
        with self.faults():
            self.client, self.experiment = connect(project.tracking_uri, project.mlflow_home)

    @property
    def encoder_model(self) -> str:
        """The name of the registered model that encoders are versions of."""
        return self.model_of(ENCODER)

    def model_of(self, task: str) -> str:
        """The name of a registered model."""
        return f"{self.settings.model}-{_NOT_IN_NAMES.sub('_', task)}"

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """MLflow's errors as one line, without a password."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            line = redacted(str(error)).splitlines()[0][:200]
            raise UserError(f"MLflow at {self.project.tracking_uri.split('@')[-1]}: {line}") from None

    def registered(self, model: str) -> Any:
        """MLflow's registered model, with its tags and aliases; None where there is none."""
        with self.faults():
            found = self.client.search_registered_models(f"name = '{model}'")
        return found[0] if found else None

    def versions(self, model: str = "") -> list[Version]:
        """All versions of the encoder (or of another model), the latest first."""
        model = model or self.encoder_model
        with self.faults():
            found = list(self.client.search_model_versions(f"name = '{model}'", max_results=10_000))
        made = [self._version(one) for one in found if REGISTRATION in one.tags]
        return sorted(made, key=lambda version: -version.number)

    def by_alias(self, alias: str) -> Version | None:
        """The encoder's version with this alias."""
        registered = self.registered(self.encoder_model)
        number = None if registered is None else registered.aliases.get(alias)
        return next((one for one in self.versions() if number is not None and one.number == int(number)), None)

    def of_registration(self, registration: str) -> dict[str, int]:
        """registered model → the number of its version that came with this registration; encoder last."""
        with self.faults():
            query = f"tags.`{REGISTRATION}` = '{registration}'"
            found = self.client.search_model_versions(query, max_results=10_000)
        numbers = {one.name: int(one.version) for one in sorted(found, key=lambda one: int(one.version), reverse=True)}
        return {name: numbers[name] for name in sorted(numbers, key=lambda name: (name == self.encoder_model, name))}

    def fetch(self, version: Version, target: Path, task: str = "") -> Path:
        """Bring the folder of a version (or of its fine-tuned model for `task`) to this machine, and check it.

        Raises:
            UserError: there is no such model in it, or a file is not what its digests.json says.
        """
        folder = f"models/{_NOT_IN_NAMES.sub('_', task)}" if task else ENCODER
        with self.faults():
            if not self.client.list_artifacts(version.run_id, folder):
                there = [Path(one.path).name for one in self.client.list_artifacts(version.run_id, "models")]
                raise UserError(f"{version} has no model for '{task}'; there are {', '.join(there) or 'none'}")
            found = Path(self.client.download_artifacts(version.run_id, folder, str(target)))
        check_digests(found)
        return found

    def candidate(self, version: Version, folder: Path) -> candidates.Candidate:
        """What the gate judges of a version; its files are brought to `folder`."""
        found = folder / ENCODER
        found.mkdir(parents=True)
        for name in (candidates.FOLDER, DIGESTS):
            with self.faults():
                came = self.client.download_artifacts(version.run_id, f"{ENCODER}/{name}", tempfile.mkdtemp(dir=folder))
            Path(came).rename(found / name)
        check_digests(found, lambda name: name.startswith(f"{candidates.FOLDER}/"))
        return candidates.read(found)

    def _version(self, found: Any) -> Version:
        return Version(found.name, int(found.version), found.tags[REGISTRATION], found.run_id, dict(found.tags))


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
            numbers = _upload(registry, record, encoder, registration, folder)
    with registry.faults():
        for model, number in numbers.items():
            registry.client.set_registered_model_alias(model, CHALLENGER, str(number))
    return next(one for one in registry.versions() if one.number == numbers[registry.encoder_model])


def best_encoder(record: RunRecord) -> str:
    """The best system of a leaderboard that is not from scratch.

    Raises:
        UserError: there is none.
    """
    systems = [system.model_dump() for system in record.systems if system.kind != "scratch"]
    found = champion_of(systems, record.headline)
    if found is None:
        raise UserError(f"leaderboard {record.digest}: no encoder but those from scratch; name one of them")
    return found


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
        if not (finetuned / task / "model").is_dir():
            continue
        check_recorded(project, "build/finetune", f"{encoder}/{task}/model")
        target = folder / "models" / _NOT_IN_NAMES.sub("_", task)
        parts[task] = _lay_out(finetuned / task / "model", target)
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


def _upload(registry: Registry, record: RunRecord, encoder: str, registration: str, folder: Path) -> dict[str, int]:
    """Send the folders and make the versions, the encoder's last: with it the registration is whole."""
    system = next(system for system in record.systems if system.name == encoder)
    tags = {
        REGISTRATION: registration,
        "cloze.encoder": encoder,
        "cloze.record": record.digest,
        "cloze.run": record.pipeline,
        "cloze.system_digest": system.digest,
        "cloze.git_commit": record.git_commit,
        "cloze.data": record.data,
        "cloze.registered": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **({} if system.average is None else {"cloze.average": f"{system.average:.4f}"}),
        **{f"cloze.dvc.{path}": md5 for path, md5 in gather(registry.project, encoder, folder).outputs.items()},
    }
    client = registry.client
    with registry.faults():
        named = {"mlflow.runName": f"registered {encoder} @{registration[:6]}", "cloze.kind": "registration"}
        run = client.create_run(registry.experiment, tags=tags | named)
        client.log_artifacts(run.info.run_id, str(folder))
        client.set_terminated(run.info.run_id)
        folders = {path.name: f"models/{path.name}" for path in sorted(folder.glob("models/*"))} | {ENCODER: ENCODER}
        numbers = {}
        for task, path in folders.items():
            model = registry.model_of(task)
            if registry.registered(model) is None:
                client.create_registered_model(model, description=f"Cloze: {task}")
            version = client.create_model_version(
                model,
                f"{run.info.artifact_uri}/{path}",
                run.info.run_id,
                tags=tags | ({} if task == ENCODER else {"cloze.benchmark": task}),
                description=(folder / path / CARD).read_text(encoding="utf-8")[:5000].split("---\n", 2)[-1],
            )
            numbers[model] = int(version.version)
    return numbers
