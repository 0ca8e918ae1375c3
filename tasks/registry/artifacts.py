"""Which of the published models to use: of a benchmark the best on dev, of the encoders the one that was trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from model.common.run_dir import RunDir


@dataclass(frozen=True)
class PublishedModel:
    """A fine-tuned model of the last run."""

    encoder: str
    benchmark: str
    directory: Path
    metric: str
    value: float
    """Of the headline metric, on dev."""

    def __str__(self) -> str:
        return f"{self.encoder}'s model for {self.benchmark} ({self.metric} {self.value:.1f} on dev)"


def published_models(finetune_dir: Path) -> list[PublishedModel]:
    """All models of a run, in the order of their encoders' and benchmarks' names.

    Raises:
        UserError: a metrics.json is damaged.
    """
    return [
        _model_of(path) for path in sorted(finetune_dir.glob("*/*/metrics.json")) if RunDir(path.parent).model.is_dir()
    ]


def best_model(finetune_dir: Path, benchmark: str, encoder: str | None = None) -> PublishedModel:
    """The model of a benchmark: `encoder`'s, or the one with the best headline score on dev.

    Raises:
        UserError: there is none; the message says what there is.
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
    return max(chosen, key=lambda one: one.value)


def encoder_folder(pretrain_dir: Path, encoder: str | None) -> Path:
    """The folder of an encoder: one of the run by its name, any folder by its path, or the run's only one that has
    been trained.

    Raises:
        UserError: there is none, or several and none is named.
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
    content = _read(path)
    best = [job for job in content.get("jobs", []) if job.get("digest") == content.get("best")]
    if not best:
        raise UserError(f"{path}: the best job is not among its jobs; run `cloze finetune` again")
    headline = best[0]["headline"]
    directory = RunDir(path.parent).model
    return PublishedModel(content["encoder"], content["benchmark"], directory, headline["metric"], headline["value"])


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error}); run the stage again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected an object; run the stage again")
    return content
