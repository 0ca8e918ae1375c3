"""Read and check the metrics of pre-training and fine-tuning that the leaderboard is made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from model.benchmarks.benchmark import Benchmark
from model.common.errors import UserError
from model.common.files import read_json
from model.common.run_dir import RunDir
from tasks.leaderboard.schema import ErrorExamples, Kind, MeasuredSystem
from tasks.stats.selection import FileRecord, RunResult


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
    """Rows of the whole training file; missing in results of older versions."""
    num_all_dev_rows: int | None = None
    num_skipped_rows: int = 0
    skipped_rows: list[str] = []
    """The first rows that were skipped, with the reason."""
    remarks: list[str] = []
    """Remarks on unusual rows that were kept."""
    dev_digest: str = ""
    """Digest of the dev rows that the run was scored on."""
    curve: list[dict[str, float]] = []
    """Training loss: {step, loss}."""
    evaluations: list[dict[str, Any]] = []
    """Scores on the dev split while training: {epoch, step, scores}."""


class EnsembleResult(FileRecord):
    """Scores of the mean of the outputs of several seeds."""

    seeds: list[int]
    scores: dict[str, pydantic.FiniteFloat]


class BenchmarkMetrics(FileRecord):
    """build/finetune/<encoder>/<benchmark>/metrics.json: every job of one encoder on one benchmark."""

    encoder: str
    kind: Kind
    benchmark: str
    row: Benchmark | None = None
    """A custom task; None for a benchmark of the table."""
    jobs: list[FinetuneResult]
    pruned: list[FinetuneResult] = []
    """Runs of grid points that were pruned."""
    ensemble: EnsembleResult | None = None
    after: list[str] = []
    """Benchmarks that the encoder was fine-tuned on before."""


class PretrainMetrics(FileRecord):
    """build/pretrain/<encoder>/metrics.json: the pre-training of an encoder (no steps for one from scratch)."""

    num_steps: int = 0
    num_tokens_seen: int = 0
    final: dict[str, Any] = {}
    curve: list[dict[str, Any]] = []
    heldout: list[dict[str, Any]] = []


@dataclass
class Inputs:
    """Metrics of encoders on benchmarks, and the files that are missing."""

    folder: Path
    """build/finetune, with the files of the runs."""
    pretraining: dict[str, PretrainMetrics] = field(default_factory=dict)
    metrics: dict[str, dict[str, BenchmarkMetrics]] = field(default_factory=dict)
    """encoder → benchmark → runs by seed; without benchmarks that have no run"""
    missing: list[dict[str, str]] = field(default_factory=list)

    @property
    def jobs(self) -> dict[str, list[FinetuneResult]]:
        """benchmark → runs of all encoders; without benchmarks that have no run"""
        jobs: dict[str, list[FinetuneResult]] = {}
        for row in self.metrics.values():
            for benchmark, metrics in row.items():
                jobs.setdefault(benchmark, []).extend(metrics.jobs)
        return jobs

    def run(self, encoder: str, benchmark: str, digest: str) -> RunDir:
        """The directory of a run."""
        return RunDir(self.folder / encoder / benchmark / "jobs" / digest)

    def errors(self, encoder: str, benchmark: str, digest: str) -> ErrorExamples | None:
        """Read the error examples of a run; None if it has none."""
        path = self.run(encoder, benchmark, digest).errors
        return ErrorExamples.parse(_read(path), str(path)) if path.is_file() else None

    def predictions(self, encoder: str, benchmark: str, digest: str) -> list[dict[str, Any]] | None:
        """Read the predictions of a run, a record per dev row; None if it has none."""
        path = self.run(encoder, benchmark, digest).predictions
        if not path.is_file():
            return None
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        except ValueError as error:
            raise UserError(f"{path}: not JSON ({error}); remove it and run the finetune stage again") from None

    def predictions_of(self, system: MeasuredSystem, benchmark: str) -> list[list[dict[str, Any]]] | None:
        """Read the predictions of the runs that count, a list per seed; None if one is missing."""
        runs = [self.predictions(system.name, benchmark, digest) for digest in system.cells[benchmark].runs]
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
        UserError: a file is missing (without `allow_missing`), is not valid, or was measured on other data than
            the others.
    """
    inputs = Inputs(finetune_dir)
    for encoder in encoders:
        name = encoder["name"]
        path = RunDir(pretrain_dir / name).metrics
        if path.is_file():
            inputs.pretraining[name] = PretrainMetrics.parse(_read(path), str(path))
        elif encoder["kind"] != "external":
            inputs.missing.append({"encoder": name, "benchmark": "", "file": f"{name}/metrics.json"})
        inputs.metrics[name] = {}
        for benchmark in benchmarks:
            path = RunDir(finetune_dir / name / benchmark).metrics
            metrics = read_metrics(path) if path.is_file() else None
            if metrics is not None and metrics.jobs:
                inputs.metrics[name][benchmark] = metrics
            else:
                file = f"{name}/{benchmark}/metrics.json"
                inputs.missing.append({"encoder": name, "benchmark": benchmark, "file": file})
    if inputs.missing and not allow_missing:
        raise UserError(_missing_line(inputs.missing, finetune_dir, pretrain_dir))
    for benchmark, jobs in inputs.jobs.items():
        _check_same_data(benchmark, jobs)
    return inputs


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); remove it and run its stage again") from None


def read_metrics(path: Path) -> BenchmarkMetrics:
    """Read ENCODER/BENCHMARK/metrics.json; the jobs are sorted by seed.

    Raises:
        UserError: it is damaged, or of another encoder or benchmark than its directories say.
    """
    metrics = BenchmarkMetrics.parse(_read(path), str(path))
    encoder, benchmark = path.parts[-3:-1]
    for row, job in enumerate(metrics.jobs):
        if (job.encoder, job.benchmark) != (encoder, benchmark):
            raise UserError(
                f"{path}: job {row} is of {job.encoder} on {job.benchmark}, expected {encoder} on {benchmark}; "
                "run the finetune stage again"
            )
        if job.headline.metric not in job.scores:
            raise UserError(f"{path}: job {row} has no score for its headline metric '{job.headline.metric}'")
    jobs = sorted(metrics.jobs, key=lambda job: (job.seed, job.digest))
    return metrics.model_copy(update={"jobs": jobs})


def _check_same_data(benchmark: str, jobs: list[FinetuneResult]) -> None:
    """Check that all runs were scored on the same dev rows with the same metric."""
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
