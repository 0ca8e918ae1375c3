"""Published models and encoders: find the best model of a benchmark, and export a directory for `transformers`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.benchmarks.table import trained_for
from model.common.digests import CARD, check_digests, write_digests
from model.common.errors import UserError
from model.common.files import atomic_directory, load_json, write_bytes, write_json
from model.common.run_dir import RunDir
from tasks.stats.selection import FileRecord, RecipeRank, RunResult, select

ONNX = "model.onnx"
FILL_MASK = "fill_mask.onnx"
_LEFT_OUT = ("metrics.json", "checkpoint", "dev", "evaluation", ".gitignore")  # records of training and evaluation


class _PublishedMetrics(FileRecord):
    """build/finetune/<encoder>/<benchmark>/metrics.json."""

    encoder: str
    benchmark: str
    best: str
    jobs: list[RunResult]


@dataclass(frozen=True)
class PublishedModel:
    encoder: str
    benchmark: str
    directory: Path
    metric: str
    value: float
    """Headline score of this model on dev."""
    job: str
    """Digest of the job that trained it."""
    rank: RecipeRank
    """Rank of its recipe by the mean over the seeds, which ranks encoders as on the leaderboard."""

    def __str__(self) -> str:
        return f"{self.encoder}'s model for {self.benchmark} ({self.metric} {self.value:.1f} on dev)"


def published_models(finetune_dir: Path) -> list[PublishedModel]:
    """Find all published models, by encoder and benchmark.

    Raises:
        UserError: a metrics.json is damaged.
    """
    found = []
    for path in sorted(finetune_dir.glob("*/*/metrics.json")):
        directory = RunDir(path.parent).model
        if not directory.is_dir():
            continue
        metrics = _PublishedMetrics.parse(_read(path), str(path))
        best = next((job.headline for job in metrics.jobs if job.digest == metrics.best), None)
        if best is None:
            raise UserError(f"{path}: the best job is not among its jobs; run `cloze finetune` again")
        rank = select(metrics.jobs).rank
        found.append(
            PublishedModel(metrics.encoder, metrics.benchmark, directory, best.metric, best.value, metrics.best, rank)
        )
    return found


def best_model(finetune_dir: Path, benchmark: str, encoder: str | None = None) -> PublishedModel:
    """Find the model of a benchmark: `encoder`'s, or that of the encoder with the highest mean headline score on dev.

    Raises:
        UserError: there is no such model; the message lists the available ones.
    """
    models = published_models(finetune_dir)
    if not models:
        raise UserError(f"{finetune_dir}: no fine-tuned model; run `cloze run` first, or pass a folder with --model")
    fitting = [one for one in models if one.benchmark == benchmark]
    if not fitting:
        there = ", ".join(dict.fromkeys(one.benchmark for one in models))
        raise UserError(f"{finetune_dir}: no model for '{benchmark}'; available: {there}")
    chosen = [one for one in fitting if encoder in (None, one.encoder)]
    if not chosen:
        there = ", ".join(one.encoder for one in fitting)
        raise UserError(f"{finetune_dir}: no model of encoder '{encoder}' for '{benchmark}'; available: {there}")
    return max(chosen, key=lambda one: one.rank)


def encoder_folder(pretrain_dir: Path, encoder: str | None) -> Path:
    """Find the directory of an encoder: a published one by name, any directory by path, or the only pre-trained one.

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
        raise UserError(f"{pretrain_dir}: no pre-trained encoder; run `cloze run` first, or pass one with --encoder")
    if len(trained) > 1:
        raise UserError(f"{pretrain_dir}: choose one of {', '.join(folder.name for folder in trained)} with --encoder")
    return trained[0]


def _read(path: Path) -> dict[str, Any]:
    content = load_json(path, remedy="; run the stage again")
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected an object; run the stage again")
    return content


def copy_published(source: Path, target: Path, copy_file: Callable[[Path, Path], object] = shutil.copyfile) -> None:
    """Copy the model of a published directory, without the records of training and evaluation.

    Args:
        copy_file: copies or links one file.

    Raises:
        UserError: a file of the source does not match its digests.json.
    """
    check_digests(source)
    for path in sorted(source.iterdir()):
        if path.name in _LEFT_OUT:
            continue
        target.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target / path.name, copy_function=lambda file, to: copy_file(Path(file), Path(to)))
        else:
            copy_file(path, target / path.name)


def export_folder(
    source: Path, target: Path, card: Callable[[Path], str] | None = None, onnx: bool = False, fill_mask: bool = False
) -> dict[str, float]:
    """Export a directory to `target`, completely or not at all.

    Args:
        card: renders README.md for a directory with its digests; by default, the source's is copied.
        onnx: also write model.onnx.
        fill_mask: also write fill_mask.onnx, the encoder with the masked language modeling head.

    Returns:
        The largest difference between the outputs of each ONNX file and the model.

    Raises:
        UserError: `target` is not empty, the source is damaged or has no such head, or ONNX's outputs differ.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: is not empty; choose a directory that does not exist")
    with atomic_directory(target) as partial:
        copy_published(source, partial)
        _name_labels(partial)
        differences = {}
        if onnx:
            differences[ONNX] = _write_onnx(partial)
        if fill_mask:
            differences[FILL_MASK] = _write_fill_mask(partial)
        write_digests(partial)
        if card is not None:
            write_bytes(partial / CARD, card(partial).encode())
    return differences


def _name_labels(folder: Path) -> None:
    """Give config.json the names of a fine-tuned model's labels instead of their numbers."""
    head, path = folder / "head.json", folder / "config.json"
    content = _read(head) if head.is_file() else {}
    if not content:
        return
    row = trained_for(content, str(head))
    if row.label_names:
        config = _read(path)
        names = [row.label_name(label) for label in row.labels]
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
        write_json(path, config)


def _write_onnx(folder: Path) -> float:
    from model.config.hardware import HardwareOptions
    from model.formats.hf_folder import load_encoder
    from model.formats.onnx import write_onnx
    from model.inference.predictor import load_finetuned

    if (folder / "head.json").is_file():
        machine = HardwareOptions(accelerator="cpu", precision="fp32", num_threads=0)
        return write_onnx(load_finetuned(folder, machine=machine).model, folder / ONNX)
    return write_onnx(load_encoder(folder), folder / ONNX)


def _write_fill_mask(folder: Path) -> float:
    from model.formats.hf_folder import load_encoder, load_masked_head
    from model.formats.onnx import MaskedLanguageModel, write_onnx

    if (folder / "head.json").is_file():
        raise UserError("--fill-mask needs an encoder; fine-tuned models have no masked language modeling head")
    encoder = load_encoder(folder)
    model = MaskedLanguageModel(encoder, load_masked_head(folder, encoder.config))
    return write_onnx(model, folder / FILL_MASK)
