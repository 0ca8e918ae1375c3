"""JOB.json: one fine-tuning job, or the ensemble of several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from model.benchmarks.table import Benchmark, find
from model.common.bounds import CountOrZero, NotNegative, Seed
from model.common.config_base import Settings
from model.common.errors import UserError
from model.common.files import read_json
from model.common.run_dir import RunDir
from model.config.finetuning import FinetuneRecipe, JudgeShare
from model.config.hardware import HardwareOptions


class Work(Settings):
    """The work that a process does with one JOB.json."""

    digest: str = Field(min_length=1)
    """Digest of all that the result depends on."""
    run_dir: Path
    """The directory that everything is written to."""
    name: str = ""
    """Name in logs and pages."""
    attempt: CountOrZero = 0
    """The attempt that may write to run_dir (model.common.ownership); 0 is not checked."""

    @property
    def result_path(self) -> Path:
        """The result, written last: it exists only when the work is done."""
        return RunDir(self.run_dir).result

    @property
    def status_path(self) -> Path:
        """The progress, rewritten during the work."""
        return RunDir(self.run_dir).status


class Job(Work):
    """Fine-tune one encoder on one benchmark with one recipe and seed."""

    encoder_name: str
    """The encoder's name in tables."""
    encoder_dir: Path
    """The encoder in the layout of `transformers`."""
    benchmark: str
    """The name of a benchmark of the table, or of the custom task in `own`."""
    own: Benchmark | None = None
    """The row of a custom task; None for a benchmark of the table."""
    data_dir: Path
    """The folder that holds glue/, squad/, swag/ and conll2003/."""
    recipe: FinetuneRecipe
    """Hyper-parameters."""
    seed: Seed
    """Keys the head's first weights, the order of rows and dropout."""
    judge_share: JudgeShare = "auto"
    """Share of the dev rows that are reported; the others select the epoch and the threshold."""
    after: str | None = None
    """The benchmark whose fine-tuned model `encoder_dir` is; None for an encoder as it was pre-trained."""
    keep_head: bool = False
    """Start from that model's head, too."""
    machine: HardwareOptions = HardwareOptions()
    """Hardware options; the result does not contain them."""
    checkpoint_every_seconds: NotNegative = 120.0
    """Training time between checkpoints; shorter jobs leave none, since they start from scratch as quickly."""

    @model_validator(mode="after")
    def _known(self) -> Job:
        try:
            name = self.row.name
        except UserError as error:
            raise ValueError(str(error)) from None
        if name != self.benchmark:
            raise ValueError(f"the row in `own` is that of {name}, not of {self.benchmark}")
        return self

    @property
    def row(self) -> Benchmark:
        """The benchmark's row."""
        return self.own or find(self.benchmark)


class Member(Settings):
    """One fine-tuning of an ensemble."""

    digest: str
    """Digest of its job."""
    seed: int
    """Its seed."""
    outputs: Path
    """Its outputs on dev: outputs.safetensors of its run directory."""


class EnsembleJob(Work):
    """Score several fine-tunings of one recipe together."""

    job: Job
    """A member's job, which defines the dev files and how their rows become sequences."""
    members: list[Member] = Field(min_length=1)
    """The fine-tunings whose outputs are averaged."""


def read_work(path: Path) -> Job | EnsembleJob:
    """Read JOB.json.

    Raises:
        UserError: it is missing, is not JSON or does not fit the schema.
    """
    try:
        document = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected a fine-tuning job") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    kind = EnsembleJob if isinstance(document, dict) and "members" in document else Job
    return kind.parse(document, str(path))


def dev_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of a result as tracked metrics: `dev/` on the reported rows, `selection/` on the others."""
    found = {f"dev/{name}": value for name, value in result["scores"].items()}
    return found | {f"selection/{name}": value for name, value in result.get("selection_scores", {}).items()}
