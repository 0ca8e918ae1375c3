"""Read and check the metrics of pre-training and fine-tuning, the input of the leaderboard."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from model.benchmarks.table import Benchmark, in_order
from model.common.errors import UserError
from model.common.files import read_json
from model.common.run_dir import RunDir
from tasks.leaderboard.schema import EvaluationData, Kind, MeasuredSystem
from tasks.stats.selection import FileRecord, RunResult, SelectedRecipe, merge, select


class FinetuneResult(RunResult, EvaluationData):
    """One fine-tuning run (result.json of model.finetune); scores are on the scale 0 to 100."""

    encoder: str
    pretrain_seed: int | None = None
    """Seed of the encoder's pre-training, if its system has several."""
    benchmark: str
    scores: dict[str, pydantic.FiniteFloat]
    majority: dict[str, pydantic.FiniteFloat] = {}
    """Scores of always predicting the majority answer."""
    skipped_rows: list[str] = []
    """The first skipped rows, with the reason."""
    remarks: list[str] = []
    """Remarks on unusual rows that were kept."""
    curve: list[dict[str, float]] = []
    """Training loss: {step, loss}."""
    evaluations: list[dict[str, Any]] = []
    """Scores on the dev split while training: {epoch, step, scores}."""


class EnsembleResult(FileRecord):
    """Scores of the ensemble: the mean of the outputs of several seeds."""

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

    @property
    def selected(self) -> SelectedRecipe[FinetuneResult]:
        """Runs of the selected recipe. Each pre-training of a system selects its own."""
        return merge([select(jobs) for _, jobs in itertools.groupby(self.jobs, key=lambda job: job.encoder)])


class PretrainMetrics(FileRecord):
    """build/pretrain/<encoder>/metrics.json: the pre-training of an encoder (no steps for one from scratch)."""

    digest: str = ""
    name: str = ""
    num_steps: int = 0
    num_tokens_seen: int = 0
    curve: list[dict[str, Any]] = []
    heldout: list[dict[str, Any]] = []


@dataclass
class Inputs:
    """Metrics of systems on benchmarks, and the missing files. A system is an encoder, or its pre-trainings with
    several seeds."""

    folder: Path
    """build/finetune, with the files of the runs."""
    pretraining: dict[str, PretrainMetrics] = field(default_factory=dict)
    """system → its first pre-training"""
    pretrain_jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    """system → encoder → digest of its pre-training job"""
    metrics: dict[str, dict[str, BenchmarkMetrics]] = field(default_factory=dict)
    """system → benchmark → runs by pre-training and seed; excludes benchmarks without runs"""
    pretrainings: dict[str, dict[str, dict[str, BenchmarkMetrics]]] = field(default_factory=dict)
    """system of several pre-trainings → encoder → benchmark → runs by seed"""
    missing: list[dict[str, str]] = field(default_factory=list)

    @property
    def jobs(self) -> dict[str, list[FinetuneResult]]:
        """benchmark → runs of all encoders; excludes benchmarks without runs"""
        jobs: dict[str, list[FinetuneResult]] = {}
        for row in self.metrics.values():
            for benchmark, metrics in row.items():
                jobs.setdefault(benchmark, []).extend(metrics.jobs)
        return jobs

    def run(self, encoder: str, benchmark: str, digest: str) -> RunDir:
        return RunDir(self.folder / encoder / benchmark / "jobs" / digest)

    def predictions(
        self, encoder: str, benchmark: str, digest: str, *, selection: bool = False
    ) -> list[dict[str, Any]] | None:
        """Read the predictions of a run, a record per reported dev row (or per row for selection); None if it has
        none."""
        path = self.run(encoder, benchmark, digest).predictions
        if not path.is_file():
            return None
        try:
            records = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        except ValueError as error:
            raise UserError(f"{path}: not JSON ({error}); remove it and run the finetune stage again") from None
        return [record for record in records if record.get("selection", False) == selection]

    def predictions_of(self, system: MeasuredSystem, benchmark: str) -> list[list[dict[str, Any]]] | None:
        """Read the predictions of the cell's runs on the reported rows, a list per run; None if one is missing."""
        cell = system.cells[benchmark]
        encoders = cell.encoders or [system.name] * len(cell.runs)
        return self.all_predictions(zip(encoders, cell.runs), benchmark)

    def all_predictions(
        self, runs: Iterable[tuple[str, str]], benchmark: str, *, selection: bool = False
    ) -> list[list[dict[str, Any]]] | None:
        """Read the predictions of several runs (encoder, digest) by `predictions`; None if one is missing."""
        found = [self.predictions(encoder, benchmark, digest, selection=selection) for encoder, digest in runs]
        return None if any(run is None for run in found) else [run or [] for run in found]


def read_inputs(
    finetune_dir: Path,
    pretrain_dir: Path,
    encoders: Sequence[Mapping[str, Any]],
    benchmarks: Sequence[str],
    *,
    allow_missing: bool = False,
) -> Inputs:
    """Read the metrics of `encoders` ({name, kind}, and {system, seed} of one of several pre-trainings) on
    `benchmarks`.

    Raises:
        UserError: a file is missing (without `allow_missing`), is invalid, or was measured on different data than
            the others.
    """
    inputs = Inputs(finetune_dir)
    missing = []
    for encoder in encoders:
        name = encoder["name"]
        system = encoder.get("system", name)
        path = RunDir(pretrain_dir / name).metrics
        if path.is_file():
            pretraining = PretrainMetrics.parse(read_output(path), str(path))
            inputs.pretraining.setdefault(system, pretraining)
            inputs.pretrain_jobs.setdefault(system, {})[name] = pretraining.digest
        elif encoder["kind"] != "external":
            inputs.missing.append({"encoder": name, "benchmark": "", "file": f"{name}/{path.name}"})
            missing.append(str(path))
        found = inputs.metrics.setdefault(system, {})
        for benchmark in benchmarks:
            path = RunDir(finetune_dir / name / benchmark).metrics
            metrics = read_metrics(path, encoder.get("seed")) if path.is_file() else None
            if metrics is not None and metrics.jobs:
                found[benchmark] = _united(found[benchmark], metrics) if benchmark in found else metrics
                if system != name:
                    inputs.pretrainings.setdefault(system, {}).setdefault(name, {})[benchmark] = metrics
            else:
                inputs.missing.append(
                    {"encoder": name, "benchmark": benchmark, "file": f"{name}/{benchmark}/{path.name}"}
                )
                missing.append(str(path))
    if missing and not allow_missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        stage = "finetune" if all(entry["benchmark"] for entry in inputs.missing) else "pretrain, then finetune,"
        raise UserError(
            f"no metrics in {', '.join(missing[:4])}{more}: the leaderboard would have gaps; "
            f"run cloze {stage} again, or pass --allow-missing"
        )
    for benchmark, jobs in inputs.jobs.items():
        _check_same_data(benchmark, jobs)
    return inputs


def read_output(path: Path) -> Any:
    """Read a JSON file that a stage wrote. Raises UserError if it is damaged."""
    try:
        return read_json(path)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); remove it and run its stage again") from None


def read_system(finetune_dir: Path, system: str) -> dict[str, BenchmarkMetrics]:
    """Read the metrics of an encoder, or of a system of several pre-trainings, by benchmark (those that all have)."""
    plan = finetune_dir / "plan.json"
    listed = read_output(plan)["encoders"] if plan.is_file() else []
    members = [one for one in listed if one.get("system") == system] or [{"name": system}]
    names = [{path.parent.name for path in finetune_dir.glob(f"{one['name']}/*/metrics.json")} for one in members]
    return {
        benchmark: functools.reduce(
            _united,
            [read_metrics(RunDir(finetune_dir / one["name"] / benchmark).metrics, one.get("seed")) for one in members],
        )
        for benchmark in in_order(set.intersection(*names))
    }


def _united(one: BenchmarkMetrics, other: BenchmarkMetrics) -> BenchmarkMetrics:
    """Unite two pre-trainings of a system. There is no ensemble of models from several pre-trainings."""
    jobs, pruned = [*one.jobs, *other.jobs], [*one.pruned, *other.pruned]
    return one.model_copy(update={"jobs": jobs, "pruned": pruned, "ensemble": None})


def read_metrics(path: Path, pretrain_seed: int | None = None) -> BenchmarkMetrics:
    """Read ENCODER/BENCHMARK/metrics.json, jobs sorted by seed. Raises UserError if it is damaged or misplaced."""
    metrics = BenchmarkMetrics.parse(read_output(path), str(path))
    encoder, benchmark = path.parts[-3:-1]
    for row, job in enumerate(metrics.jobs):
        if (job.encoder, job.benchmark) != (encoder, benchmark):
            raise UserError(
                f"{path}: job {row} is of {job.encoder} on {job.benchmark}, expected {encoder} on {benchmark}; "
                "run the finetune stage again"
            )
        if job.headline.metric not in job.scores:
            raise UserError(f"{path}: job {row} has no score for its headline metric '{job.headline.metric}'")
    jobs = [job.model_copy(update={"pretrain_seed": pretrain_seed}) for job in metrics.jobs]
    jobs = sorted(jobs, key=lambda job: (job.seed, job.digest))
    return metrics.model_copy(update={"jobs": jobs})


def _check_same_data(benchmark: str, jobs: list[FinetuneResult]) -> None:
    for job in jobs[1:]:
        for what, one, other in (
            ("headline metric", jobs[0].headline.metric, job.headline.metric),
            ("number of dev rows", jobs[0].num_dev_rows, job.num_dev_rows),
            ("digest of the dev rows", jobs[0].dev_digest, job.dev_digest),
        ):
            if one != other:
                raise UserError(
                    f"{benchmark}: the {what} of {jobs[0].encoder} seed {jobs[0].seed} is {one}, of {job.encoder} "
                    f"seed {job.seed} it is {other}; run the finetune stage again on the same data"
                )
