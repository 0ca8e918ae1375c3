"""What the leaderboard reads: the metrics that pre-training and fine-tuning left, checked as they come in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pydantic

from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.common.run_dir import RunDir
from tasks.stats.selection import FileRecord, RunResult

Kind = Literal["pretrained", "scratch", "external"]


class FinetuneResult(RunResult):
    """One fine-tuning run (result.json of model.finetune); scores are on the scale 0 to 100."""

    encoder: str
    benchmark: str
    scores: dict[str, pydantic.FiniteFloat]
    majority: dict[str, pydantic.FiniteFloat] = {}
    """The scores of always giving the majority answer."""
    num_train_rows: int
    num_dev_rows: int
    num_all_train_rows: int | None = None
    """Rows of the whole training file; not told by results of older versions."""
    num_all_dev_rows: int | None = None
    """Rows of the whole dev files."""
    num_skipped_rows: int = 0
    skipped_rows: list[str] = []
    """The first rows that were skipped, with the reason."""
    remarks: list[str] = []
    """What is odd about rows that were kept."""
    dev_digest: str = ""
    """Names the dev rows that the score was measured on."""
    curve: list[dict[str, float]] = []
    """Training loss: {step, loss}."""
    evaluations: list[dict[str, Any]] = []
    """Scores on the dev split while training: {epoch, step, scores}."""


class EnsembleResult(FileRecord):
    """What the mean of the outputs of a cell's runs scores."""

    seeds: list[int]
    scores: dict[str, pydantic.FiniteFloat]


class BenchmarkMetrics(FileRecord):
    """build/finetune/<encoder>/<benchmark>/metrics.json: every job of one encoder on one benchmark."""

    encoder: str
    kind: Kind
    benchmark: str
    row: Benchmark | None = None
    """The row of an own task; none for a benchmark of the table."""
    jobs: list[FinetuneResult]
    pruned: list[FinetuneResult] = []
    """Runs of grid points that were given up."""
    ensemble: EnsembleResult | None = None
    after: list[str] = []
    """The benchmarks that it was fine-tuned on before."""


class ErrorRow(FileRecord):
    """A dev row that a run got wrong."""

    id: str
    part: str = ""
    value: float
    """What the rows are ranked by."""
    texts: list[tuple[str, str]]
    """Names and texts."""
    prediction: str
    label: str


class ErrorExamples(FileRecord):
    """errors.json of a run: dev rows that it got wrong (model.benchmarks.scoring.error_examples)."""

    ranked_by: str
    num_rows: int
    num_wrong: int | None
    rows: list[ErrorRow]


class PretrainMetrics(FileRecord):
    """build/pretrain/<encoder>/metrics.json: what became of an encoder (no steps for one from scratch)."""

    num_steps: int = 0
    num_tokens_seen: int = 0
    final: dict[str, Any] = {}
    curve: list[dict[str, Any]] = []
    heldout: list[dict[str, Any]] = []


@dataclass
class Inputs:
    """All that is there, and the files that are not."""

    folder: Path = Path()
    """build/finetune, where the runs' own files lie."""
    pretraining: dict[str, PretrainMetrics] = field(default_factory=dict)
    finetuning: dict[str, dict[str, list[FinetuneResult]]] = field(default_factory=dict)
    beside: dict[str, dict[str, BenchmarkMetrics]] = field(default_factory=dict)
    """What the same files tell beside the runs: the ensemble, what was given up, what came before."""
    own: dict[str, Benchmark] = field(default_factory=dict)
    """The rows of own tasks."""
    missing: list[dict[str, str]] = field(default_factory=list)

    def errors(self, encoder: str, benchmark: str, digest: str) -> ErrorExamples | None:
        """The error examples of one run; None where it left none."""
        path = RunDir(self.folder / encoder / benchmark / "jobs" / digest).errors
        return ErrorExamples.parse(_read(path), str(path)) if path.is_file() else None

    def predictions(self, encoder: str, benchmark: str, digest: str) -> list[dict[str, Any]] | None:
        """The predictions of one run, a record per dev row; None where it left none."""
        path = RunDir(self.folder / encoder / benchmark / "jobs" / digest).predictions
        if not path.is_file():
            return None
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        except ValueError as error:
            raise UserError(f"{path}: not JSON ({error}); remove it and run the finetune stage again") from None

    def predictions_of(self, system: Mapping[str, Any], benchmark: str) -> list[list[dict[str, Any]]] | None:
        """The predictions of the runs of a cell of the board, a list per seed; None where one is missing."""
        runs = [self.predictions(system["name"], benchmark, digest) for digest in system["cells"][benchmark]["runs"]]
        return None if any(run is None for run in runs) else [run or [] for run in runs]


def read_inputs(
    finetune_dir: Path,
    pretrain_dir: Path,
    encoders: Sequence[dict[str, str]],
    benchmarks: Sequence[str],
    *,
    allow_missing: bool = False,
) -> Inputs:
    """Read the metrics of `encoders` ({name, kind}) on `benchmarks`.

    Raises:
        UserError: a file is missing (without `allow_missing`), is not what it should be, or tells of other data
            than its neighbours do.
    """
    inputs = Inputs(finetune_dir)
    for encoder in encoders:
        name = encoder["name"]
        path = RunDir(pretrain_dir / name).metrics
        if path.is_file():
            inputs.pretraining[name] = PretrainMetrics.parse(_read(path), str(path))
        elif encoder["kind"] != "external":
            inputs.missing.append({"encoder": name, "benchmark": "", "file": f"{name}/metrics.json"})
        inputs.finetuning[name], inputs.beside[name] = {}, {}
        for benchmark in benchmarks:
            path = RunDir(finetune_dir / name / benchmark).metrics
            metrics = _metrics(path, name, benchmark) if path.is_file() else None
            if metrics is not None and metrics.jobs:
                inputs.finetuning[name][benchmark] = sorted(metrics.jobs, key=lambda job: (job.seed, job.digest))
                inputs.beside[name][benchmark] = metrics
                if metrics.row is not None:
                    inputs.own[benchmark] = metrics.row
            else:
                file = f"{name}/{benchmark}/metrics.json"
                inputs.missing.append({"encoder": name, "benchmark": benchmark, "file": file})
    if inputs.missing and not allow_missing:
        raise UserError(_missing_line(inputs.missing, finetune_dir, pretrain_dir))
    for benchmark in benchmarks:
        _check_same_data(benchmark, [runs.get(benchmark, []) for runs in inputs.finetuning.values()])
    return inputs


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); remove it and run its stage again") from None


def _metrics(path: Path, encoder: str, benchmark: str) -> BenchmarkMetrics:
    metrics = BenchmarkMetrics.parse(_read(path), str(path))
    for row, job in enumerate(metrics.jobs):
        if (job.encoder, job.benchmark) != (encoder, benchmark):
            raise UserError(
                f"{path}: job {row} is of {job.encoder} on {job.benchmark}, expected {encoder} on {benchmark}; "
                "run the finetune stage again"
            )
        if job.headline.metric not in job.scores:
            raise UserError(f"{path}: job {row} has no score for its headline metric '{job.headline.metric}'")
    return metrics


def _check_same_data(benchmark: str, cells: list[list[FinetuneResult]]) -> None:
    """Scores are compared only where they were measured on the same dev split with the same metric."""
    jobs = [job for cell in cells for job in cell]
    for job in jobs[1:]:
        for what, one, other in (
            ("headline metric", jobs[0].headline.metric, job.headline.metric),
            ("number of dev rows", jobs[0].num_dev_rows, job.num_dev_rows),
            ("digest of the dev rows", jobs[0].dev_digest, job.dev_digest),
        ):
            if one != other:
                raise UserError(
                    f"{benchmark}: the {what} of {jobs[0].encoder} seed {jobs[0].seed} is {one}, of {job.encoder} "
                    f"seed {job.seed} it is {other}; run the finetune stage again on one data set"
                )


def _missing_line(missing: list[dict[str, str]], finetune_dir: Path, pretrain_dir: Path) -> str:
    where = [str((finetune_dir if entry["benchmark"] else pretrain_dir) / entry["file"]) for entry in missing[:4]]
    more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
    stage = "finetune" if all(entry["benchmark"] for entry in missing) else "pretrain, then finetune,"
    return (
        f"no metrics in {', '.join(where)}{more}: the leaderboard would have gaps; "
        f"run cloze {stage} again, or pass --allow-missing"
    )
