"""Find and read registered versions in MLflow (`tasks.registry.registration` creates them).

A registration is one MLflow run whose artifacts are directories of safetensors with card and digests, and a version of
MODEL-encoder and of each MODEL-TASK that refers to them. Versions of one registration have its digest as a tag, so
registering the same models again finds them. Versions contain no pickles and do not need MLflow's model flavors.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.common.digests import NAME as DIGESTS
from model.common.digests import check_digests
from model.common.errors import UserError
from model.common.redaction import redacted
from tasks.params.root import load_params
from tasks.project.project import Project
from tasks.registry.gate import EVALUATION, Candidate, read_candidate
from tasks.tracking.forward import connect

ENCODER = "encoder"
CHAMPION = "champion"
CHALLENGER = "challenger"
REGISTRATION = "cloze.registration"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


def file_name(task: str) -> str:
    """Replace the characters of a task's name that MLflow and file systems do not allow."""
    return _NOT_IN_NAMES.sub("_", task)


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
        """Name of the encoder in params.yaml."""
        return self.tags.get("cloze.encoder", "")

    def __str__(self) -> str:
        return f"{self.encoder} (version {self.number} of {self.model})"


class Registry:
    """The project's models in MLflow's registry.

    Raises:
        UserError: (from every method) MLflow is not reachable, or refuses.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.settings = load_params(project.params_path).promotion
        with self.errors():
            self.client, self.experiment = connect(project.tracking_uri, project.mlflow_home)

    @property
    def encoder_model(self) -> str:
        """Name of the registered model of encoders."""
        return self.model_of(ENCODER)

    def model_of(self, task: str) -> str:
        """Name of the registered model of a task."""
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
        """Return all versions of the encoder (or of another model), the latest first."""
        model = model or self.encoder_model
        with self.errors():
            found = list(self.client.search_model_versions(f"name = '{model}'", max_results=10_000))
        made = [self._version(one) for one in found if REGISTRATION in one.tags]
        return sorted(made, key=lambda version: -version.number)

    def by_alias(self, alias: str) -> Version | None:
        """Return the encoder's version with this alias."""
        registered = self.registered(self.encoder_model)
        number = None if registered is None else registered.aliases.get(alias)
        return next((one for one in self.versions() if number is not None and one.number == int(number)), None)

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
            UserError: it has no such model, or a file does not match digests.json.
        """
        folder = f"models/{file_name(task)}" if task else ENCODER
        with self.errors():
            if not self.client.list_artifacts(version.run_id, folder):
                there = [Path(one.path).name for one in self.client.list_artifacts(version.run_id, "models")]
                raise UserError(f"{version} has no model for '{task}'; there are {', '.join(there) or 'none'}")
            found = Path(self.client.download_artifacts(version.run_id, folder, str(target)))
        check_digests(found)
        return found

    def candidate(self, version: Version, folder: Path) -> Candidate:
        """Read the candidate of a version; its files are downloaded to `folder`."""
        found = folder / ENCODER
        found.mkdir(parents=True)
        for name in (EVALUATION, DIGESTS):
            with self.errors():
                path = self.client.download_artifacts(version.run_id, f"{ENCODER}/{name}", tempfile.mkdtemp(dir=folder))
            Path(path).rename(found / name)
        check_digests(found, lambda name: name.startswith(f"{EVALUATION}/"))
        return read_candidate(found)

    def _version(self, found: Any) -> Version:
        return Version(found.name, int(found.version), found.tags[REGISTRATION], found.run_id, dict(found.tags))
