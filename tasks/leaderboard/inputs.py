"""What the leaderboard reads: the metrics that pre-training and fine-tuning left, checked as they come in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pydantic

from model.benchmarks.table import Benchmark
from model.errors import UserError
from model.settings import Settings

Kind = Literal["pretrained", "scratch"]


class Record(Settings):
    """A part of a result file; keys that the leaderboard does not use are let through."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class Headline(Record):
    """The metric that speaks for a benchmark."""

    metric: str
    value: pydantic.FiniteFloat


class FinetuneResult(Record):
    """One fine-tuning run (result.json of model.finetune); scores are on the scale 0 to 100."""

    digest: str
    encoder: str
    benchmark: str
    seed: int
    recipe: dict[str, Any]
    scores: dict[str, pydantic.FiniteFloat]
    headline: Headline
    majority: dict[str, pydantic.FiniteFloat] = {}
    """The scores of always giving the majority answer."""
    degenerate: bool = False
    """One answer for every row."""
    num_train_rows: int
    num_dev_rows: int
    num_skipped_rows: int = 0
    curve: list[dict[str, float]] = []
    """Training loss: {step, loss}."""
    evaluations: list[dict[str, Any]] = []
    """Scores on the dev split while training: {epoch, step, scores}."""


class BenchmarkMetrics(Record):
    """build/finetune/<encoder>/<benchmark>/metrics.json: every job of one encoder on one benchmark."""

    encoder: str
    kind: Kind
    benchmark: str
    row: Benchmark | None = None
    """The row of an own task; none for a benchmark of the table."""
    jobs: list[FinetuneResult]


class PretrainMetrics(Record):
    """build/pretrain/<encoder>/metrics.json: what became of an encoder (no steps for one from scratch)."""

    num_steps: int = 0
    num_tokens_seen: int = 0
    final: dict[str, Any] = {}
    curve: list[dict[str, Any]] = []
    heldout: list[dict[str, Any]] = []


@dataclass
class Inputs:
    """All that is there, and the files that are not."""

    pretraining: dict[str, PretrainMetrics] = field(default_factory=dict)
    finetuning: dict[str, dict[str, list[FinetuneResult]]] = field(default_factory=dict)
    own: dict[str, Benchmark] = field(default_factory=dict)
    """The rows of own tasks."""
    missing: list[dict[str, str]] = field(default_factory=list)


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
    inputs = Inputs()
    for encoder in encoders:
        name = encoder["name"]
        path = pretrain_dir / name / "metrics.json"
        if path.is_file():
            inputs.pretraining[name] = PretrainMetrics.parse(_read(path), str(path))
        else:
            inputs.missing.append({"encoder": name, "benchmark": "", "file": f"{name}/metrics.json"})
        inputs.finetuning[name] = {}
        for benchmark in benchmarks:
            path = finetune_dir / name / benchmark / "metrics.json"
            jobs = _jobs(path, name, benchmark, inputs.own) if path.is_file() else []
            if jobs:
                inputs.finetuning[name][benchmark] = jobs
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


def _jobs(path: Path, encoder: str, benchmark: str, own: dict[str, Benchmark]) -> list[FinetuneResult]:
    metrics = BenchmarkMetrics.parse(_read(path), str(path))
    if metrics.row is not None:
        own[benchmark] = metrics.row
    for row, job in enumerate(metrics.jobs):
        if (job.encoder, job.benchmark) != (encoder, benchmark):
            raise UserError(
                f"{path}: job {row} is of {job.encoder} on {job.benchmark}, expected {encoder} on {benchmark}; "
                "run the finetune stage again"
            )
        if job.headline.metric not in job.scores:
            raise UserError(f"{path}: job {row} has no score for its headline metric '{job.headline.metric}'")
    return sorted(metrics.jobs, key=lambda job: (job.seed, job.digest))


def _check_same_data(benchmark: str, cells: list[list[FinetuneResult]]) -> None:
    """Scores are compared only where they were measured on the same dev split with the same metric."""
    jobs = [job for cell in cells for job in cell]
    for job in jobs[1:]:
        for what, one, other in (
            ("headline metric", jobs[0].headline.metric, job.headline.metric),
            ("number of dev rows", jobs[0].num_dev_rows, job.num_dev_rows),
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
