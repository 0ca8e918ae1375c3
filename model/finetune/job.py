"""One fine-tuning job, or the ensemble of several: what JOB.json says, and where its files lie."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from model.benchmarks.table import Benchmark, find, paper_recipe
from model.common.config_base import Settings
from model.common.errors import UserError
from model.common.files import read_json
from model.config.finetuning import FinetuneRecipe
from model.config.hardware import HardwareOptions

__all__ = ["EnsembleJob", "FinetuneRecipe", "Job", "Member", "Work", "paper_recipe", "read_job", "read_work"]


class Work(Settings):
    """What a process does with one JOB.json."""

    digest: str = Field(min_length=1)
    """Its name: a digest of all that its result depends on."""
    run_dir: Path
    """Everything that it writes."""

    @property
    def result_path(self) -> Path:
        """The result, written last: it is there when, and only when, the work is done."""
        return self.run_dir / "result.json"

    @property
    def status_path(self) -> Path:
        """How far it is, rewritten as it goes."""
        return self.run_dir / "status.json"


class Job(Work):
    """Fine-tune one encoder on one benchmark with one recipe and seed."""

    encoder_name: str
    """The encoder's name in tables."""
    encoder_dir: Path
    """The encoder in the layout of `transformers`."""
    benchmark: str
    """A name of the table of benchmarks, or that of `own`."""
    own: Benchmark | None = None
    """The whole row of an own task; none for a benchmark of the table."""
    data_dir: Path
    """The folder that holds glue/, squad/, swag/ and conll2003/."""
    recipe: FinetuneRecipe
    """Hyper-parameters."""
    seed: int = Field(ge=0)
    """Keys the head's first weights, the order of rows and dropout."""
    after: str | None = None
    """The benchmark whose fine-tuned model `encoder_dir` is; none for an encoder as it was pre-trained."""
    keep_head: bool = False
    """Start from that model's head, too."""
    machine: HardwareOptions = HardwareOptions()
    """Where it runs; the result does not name it."""
    checkpoint_every_seconds: float = Field(120.0, ge=0)
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
    """One fine-tuning of the ensemble."""

    digest: str
    """Its job."""
    seed: int
    """Its seed."""
    outputs: Path
    """The file that it left (see `model.finetune.output.write_outputs`)."""


class EnsembleJob(Work):
    """Score an ensemble: JOB.json of one."""

    job: Job
    """A member's job: which dev files, and how their rows become sequences."""
    members: list[Member] = Field(min_length=1)
    """Who is averaged."""


def read_job(path: Path) -> Job:
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
    return Job.parse(document, str(path))


def read_work(path: Path) -> Job | EnsembleJob:
    """JOB.json of a fine-tuning or of an ensemble.

    Raises:
        UserError: it does not fit the schema.
    """
    document = read_json(path)
    return EnsembleJob.parse(document, str(path)) if "members" in document else read_job(path)
