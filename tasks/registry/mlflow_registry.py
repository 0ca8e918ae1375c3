"""Register encoders in MLflow, and find and read registered versions.

A registration is one MLflow run whose artifacts are directories of safetensors with card and digests, and one version
each of MODEL-encoder and every MODEL-TASK that refers to them. The encoder's version is created last and
completes the registration. The next registration from the same project and machine resumes an interrupted one, or
removes it if it is not needed. Versions of one registration have its digest as a tag, so registering the same
models again finds them. Versions contain no pickles; MLmodel names `model.inference.pyfunc` as their loader.
"""

from __future__ import annotations

import contextlib
import platform
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.common.digests import CARD, check_digests, read_digests, write_digests
from model.common.digests import NAME as DIGESTS
from model.common.errors import UserError
from model.common.files import digest_of, write_bytes
from model.common.redaction import redacted
from model.common.run_dir import RunDir
from tasks.dvc.integrity import check_recorded, inputs, outputs
from tasks.leaderboard.comparisons import reference_of
from tasks.leaderboard.schema import RunRecord
from tasks.params.root import load_params
from tasks.project.project import Project
from tasks.project.workspace import run_id, staging, timestamp
from tasks.registry.artifacts import copy_published
from tasks.registry.gate import EVALUATION, Candidate, candidate_of, read_candidate, write_candidate
from tasks.registry.mlflow_model import write_mlmodel
from tasks.registry.model_card import current_record, faults, gather, render
from tasks.tracking.tracking import connect, standard_tags

ENCODER = "encoder"
CHAMPION = "champion"
BEST = "best"
CHALLENGER = "challenger"
REGISTRATION = "cloze.registration"
_KIND = "cloze.kind"
_ORIGIN = "cloze.place"
_WEIGHTS = "cloze.weights"
_ABANDONED_SECONDS = 86_400  # no registration takes this long


def file_name(task: str) -> str:
    """Replace the characters of a task's name that MLflow and file systems do not allow."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", task)


@dataclass(frozen=True)
class Version:
    """A registered version of an encoder."""

    model: str
    """MODEL-encoder."""
    number: int
    registration: str
    """Digest that the versions of its fine-tuned models share."""
    run_id: str
    """MLflow run that has its files."""
    tags: dict[str, str]

    @property
    def encoder(self) -> str:
        return self.tags.get("cloze.encoder", "")

    @property
    def weights(self) -> str:
        """Digest of the encoder's weights; empty for versions of older releases."""
        return self.tags.get(_WEIGHTS, "")

    def __str__(self) -> str:
        run = self.tags.get("cloze.run", "")
        return f"{self.encoder}{f'@{run_id(run)}' if run else ''} (version {self.number} of {self.model})"


class Registry:
    """The project's models in MLflow's registry.

    Raises:
        UserError: (from every method) MLflow is not reachable or refuses the request.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.settings = load_params(project.params_path).promotion
        with self.errors():
            self.client, experiment = connect(project.tracking_uri, project.mlflow_home)
        self.experiment = str(experiment.experiment_id)

    @property
    def encoder_model(self) -> str:
        return self.model_of(ENCODER)

    def model_of(self, task: str) -> str:
        return f"{self.settings.model}-{file_name(task)}"

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Report errors of MLflow and of its artifact store as a UserError of one line without passwords."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
        from mlflow.exceptions import MlflowException
        from requests import RequestException

        try:
            yield
        except (MlflowException, RequestException, Boto3Error, BotoCoreError, ClientError) as error:
            line = (redacted(str(error)).splitlines() or [type(error).__name__])[0][:200]
            raise UserError(f"MLflow at {self.project.tracking_uri.split('@')[-1]}: {line}") from None

    def registered(self, model: str) -> Any:
        """Return MLflow's registered model with its tags and aliases; None if there is none."""
        with self.errors():
            found = self.client.search_registered_models(f"name = '{model}'")
        return found[0] if found else None

    def versions(self, model: str = "") -> list[Version]:
        """Return all versions of the encoder (or of another model), latest first."""
        model = model or self.encoder_model
        with self.errors():
            found = list(self.client.search_model_versions(f"name = '{model}'", max_results=10_000))
        made = [
            Version(one.name, int(one.version), one.tags[REGISTRATION], one.run_id, dict(one.tags))
            for one in found
            if REGISTRATION in one.tags
        ]
        return sorted(made, key=lambda version: -version.number)

    def by_alias(self, alias: str) -> Version | None:
        registered = self.registered(self.encoder_model)
        if registered is None or alias not in registered.aliases:
            return None
        return next((one for one in self.versions() if one.number == int(registered.aliases[alias])), None)

    def set_alias(self, alias: str, version: Version) -> None:
        """Move an alias to a version and its fine-tuned models, and remove it from models that the version lacks."""
        numbers = self.of_registration(version.registration) | {self.encoder_model: version.number}
        with self.errors():
            for registered in self.client.search_registered_models(f"name LIKE '{self.settings.model}-%'"):
                if alias in registered.aliases and registered.name not in numbers:
                    self.client.delete_registered_model_alias(registered.name, alias)
            for model, number in numbers.items():
                self.client.set_registered_model_alias(model, alias, str(number))

    def of_registration(self, registration: str) -> dict[str, int]:
        """registered model → number of its version of this registration; the encoder last"""
        with self.errors():
            query = f"tags.`{REGISTRATION}` = '{registration}'"
            found = self.client.search_model_versions(query, max_results=10_000)
        numbers = {one.name: int(one.version) for one in sorted(found, key=lambda one: int(one.version), reverse=True)}
        return {name: numbers[name] for name in sorted(numbers, key=lambda name: (name == self.encoder_model, name))}

    def fetch(self, version: Version, target: Path, task: str = "") -> Path:
        """Download the directory of a version (or of its fine-tuned model for `task`) to `target`, and check it.

        Raises:
            UserError: the version has no such model, or a file does not match digests.json.
        """
        folder = f"models/{file_name(task)}" if task else ENCODER
        with self.errors():
            if not self.client.list_artifacts(version.run_id, folder):
                there = [Path(one.path).name for one in self.client.list_artifacts(version.run_id, "models")]
                raise UserError(f"{version} has no model for '{task}'; available: {', '.join(there) or 'none'}")
            found = Path(self.client.download_artifacts(version.run_id, folder, str(target)))
        check_digests(found)
        return found

    def candidate(self, version: Version) -> Candidate:
        with tempfile.TemporaryDirectory() as folder:
            for name in (EVALUATION, DIGESTS):
                with self.errors():
                    path = self.client.download_artifacts(version.run_id, f"{ENCODER}/{name}", folder)
            found = Path(path).parent
            check_digests(found, lambda name: name.startswith(f"{EVALUATION}/"))
            return read_candidate(found)


def register(project: Project, encoder: str = "") -> Version:
    """Register an encoder of the last run with its fine-tuned models, and give it the alias `challenger`.

    Args:
        encoder: name of the encoder; empty for the best one on the leaderboard that is not from scratch. Of a system
            with several pre-trainings, the first is registered: the best one would owe its score to luck, too.

    Raises:
        UserError: there is no leaderboard or no such encoder, the leaderboard or a published file is not the one in
            DVC's record, or MLflow is not reachable.
    """
    record = current_record(project)
    if record is None:
        raise UserError("build/leaderboard: nothing to register; run `cloze run` first")
    published = outputs(project)
    replaced = [path for path, md5 in inputs(project, "leaderboard").items() if published.get(path, md5) != md5]
    if replaced:  # by a stage that ran alone, or by a run that did not get to the leaderboard
        raise UserError(
            f"build/leaderboard is older than {' and '.join(replaced)}, so its scores are those of other encoders; "
            "run `cloze run` first"
        )
    if not encoder:
        best = reference_of([system for system in record.systems if system.kind != "scratch"], record.headline)
        if best is None:
            raise UserError(f"leaderboard {record.digest}: all encoders are from scratch; pass the name of one")
        encoder = best.name
    system = record.system(encoder)
    if system is not None and system.pretrainings:
        encoder = system.pretrainings[0].name
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


def _assemble(project: Project, record: RunRecord, encoder: str, folder: Path) -> str:
    """Write folder/encoder and folder/models/TASK; returns the digest of the registration."""
    source, finetuned = encoder_folder(project, encoder), project.build / "finetune" / encoder
    check_recorded(project, "build/pretrain", encoder)
    parts: dict[str, Any] = {ENCODER: _copy(source, folder / ENCODER)}
    facts = gather(project, encoder, folder / ENCODER)
    candidate = candidate_of(project, record, encoder, faults(facts))
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
    licenses = {one["name"]: [one.get("license"), one.get("origin")] for one in facts.corpus.get("sources", ())}
    return digest_of([encoder, candidate.digest, list(candidate.card_faults), licenses, parts])


def _copy(source: Path, target: Path) -> dict[str, str]:
    copy_published(source, target)
    return write_digests(target)


def encoder_folder(project: Project, encoder: str) -> Path:
    """Find the directory of an encoder of params.yaml: in build/pretrain, or an external one in data/.

    Raises:
        UserError: it does not exist.
    """
    external = load_params(project.params_path).finetune.encoders
    folders = [project.build / "pretrain" / encoder]
    folders += [project.data / one.path for one in external if one.name == encoder]
    for folder in folders:
        if (folder / "config.json").is_file():
            return folder
    there = ", ".join(sorted(path.parent.name for path in project.build.glob("pretrain/*/config.json"))) or "none"
    raise UserError(f"no encoder '{encoder}' in {project.relative(project.build / 'pretrain')}; available: {there}")


def _tags(registry: Registry, record: RunRecord, encoder: str, registration: str, folder: Path) -> dict[str, str]:
    system = record.system(encoder)
    assert system is not None
    return {
        REGISTRATION: registration,
        _ORIGIN: digest_of([platform.node(), str(registry.project.home)]),
        _WEIGHTS: read_digests(folder / ENCODER).get("model.safetensors", ""),
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
        more = standard_tags(registry.project, "cloze promote") | {"mlflow.runName": name, _KIND: "registration"}
        run = client.create_run(registry.experiment, tags={**tags, **more})
        for path in _folders(folder).values():
            write_mlmodel(folder / path, run.info.run_id, path)
        client.log_artifacts(run.info.run_id, str(folder))
        client.set_terminated(run.info.run_id)
    return run


def _shortened(text: str, limit: int = 5000) -> str:
    """Cut a text after its last whole line within `limit` characters."""
    return text if len(text) <= limit else text[:limit].rpartition("\n")[0]


def _folders(folder: Path) -> dict[str, str]:
    """task → directory of a registration, relative to `folder`; the encoder last"""
    return {path.name: f"models/{path.name}" for path in sorted(folder.glob("models/*"))} | {ENCODER: ENCODER}


def _interrupted(registry: Registry, origin: str) -> list[Any]:
    """Find the runs of interrupted registrations, resumable ones first.

    These runs are from this project on this machine, which runs one registration at a time, or older than a day.
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
    """Create the versions that are missing from `numbers`; returns all numbers by model name."""
    client = registry.client
    made = dict(numbers)
    with registry.errors():
        for task, path in _folders(folder).items():
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
                description=_shortened((folder / path / CARD).read_text(encoding="utf-8").split("---\n", 2)[-1]),
            )
            made[model] = int(version.version)
    return made
