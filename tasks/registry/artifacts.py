"""Find the published model of a benchmark that is best on dev, and the pre-trained encoder of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from model.common.run_dir import RunDir
from tasks.stats.selection import FileRecord, RecipeRank, RunResult, select


class _PublishedMetrics(FileRecord):
    """build/finetune/<encoder>/<benchmark>/metrics.json."""

    encoder: str
    benchmark: str
    best: str
    jobs: list[RunResult]


@dataclass(frozen=True)
class PublishedModel:
    """A published fine-tuned model."""

    encoder: str
    benchmark: str
    directory: Path
    metric: str
    value: float
    """Headline score of this model on dev."""
    rank: RecipeRank
    """Rank of its recipe, by the mean over the seeds; encoders are compared by it, as on the leaderboard."""

    def __str__(self) -> str:
        return f"{self.encoder}'s model for {self.benchmark} ({self.metric} {self.value:.1f} on dev)"


def published_models(finetune_dir: Path) -> list[PublishedModel]:
    """Find all published models, by encoder and benchmark.

    Raises:
        UserError: a metrics.json is damaged.
    """
    return [
        _model_of(path) for path in sorted(finetune_dir.glob("*/*/metrics.json")) if RunDir(path.parent).model.is_dir()
    ]


def best_model(finetune_dir: Path, benchmark: str, encoder: str | None = None) -> PublishedModel:
    """The model of a benchmark: `encoder`'s, or that of the encoder whose mean headline score on dev is the highest.

    Raises:
        UserError: there is none; the message lists the available ones.
    """
    models = published_models(finetune_dir)
    if not models:
        raise UserError(f"{finetune_dir}: no fine-tuned model; run `cloze run` first, or name a folder with --model")
    fitting = [one for one in models if one.benchmark == benchmark]
    if not fitting:
        there = ", ".join(dict.fromkeys(one.benchmark for one in models))
        raise UserError(f"{finetune_dir}: no model for '{benchmark}'; there are models for {there}")
    chosen = [one for one in fitting if encoder in (None, one.encoder)]
    if not chosen:
        there = ", ".join(one.encoder for one in fitting)
        raise UserError(f"{finetune_dir}: no model of encoder '{encoder}' for '{benchmark}'; there are {there}")
    return max(chosen, key=lambda one: one.rank)


def encoder_folder(pretrain_dir: Path, encoder: str | None) -> Path:
    """Find the directory of an encoder: a published one by name, any directory by path, or the only pre-trained one.

    Raises:
        UserError: there is none, or several if none is named.
    """
    if encoder is not None:
        for folder in (pretrain_dir / encoder, Path(encoder)):
            if (folder / "config.json").is_file() or (folder / "modules.json").is_file():
                return folder
        raise UserError(f"no encoder '{encoder}' in {pretrain_dir} and no folder of that name with a config.json")
    trained = [path.parent for path in sorted(pretrain_dir.glob("*/metrics.json")) if _read(path).get("num_steps", 0)]
    if not trained:
        raise UserError(f"{pretrain_dir}: no pre-trained encoder; run `cloze run` first, or name one with --encoder")
    if len(trained) > 1:
        raise UserError(f"{pretrain_dir}: {', '.join(folder.name for folder in trained)}; name one with --encoder")
    return trained[0]


def _model_of(path: Path) -> PublishedModel:
    metrics = _PublishedMetrics.parse(_read(path), str(path))
    best = next((job for job in metrics.jobs if job.digest == metrics.best), None)
    if best is None:
        raise UserError(f"{path}: the best job is not among its jobs; run `cloze finetune` again")
    return PublishedModel(
        metrics.encoder,
        metrics.benchmark,
        RunDir(path.parent).model,
        best.headline.metric,
        best.headline.value,
        select(metrics.jobs).rank,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error}); run the stage again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected an object; run the stage again")
    return content
