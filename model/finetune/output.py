"""What a fine-tuning leaves beside its result: predictions, and the model in the layout of `transformers`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors.torch import save
from torch import Tensor

from model.common.files import write_bytes, write_json
from model.common.run_dir import RunDir
from model.config.adaptation import LoraAdaptation
from model.finetune.frozen_features import FeatureModel
from model.finetune.job import Job
from model.finetune.lora import added, merge
from model.formats import peft
from model.formats.hf_folder import FORMATS, TOKENIZER_FILES, fill, load_tensors, to_published, weights_path
from model.heads.task_model import HEADS, TaskModel

OUTPUT_PREFIX = "dev."  # before the suffix of a part of the dev set


def write_predictions(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write one JSON line per row of the dev set."""
    write_bytes(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode())


def write_documents(folder: Path, documents: dict[str, Any]) -> None:
    """Write a benchmark's official files (SQuAD's predictions.json, null_odds.json and nbest_predictions.json) to
    folder/dev, where `folder` is the model's, which is kept for the best job alone: an n-best list takes 30 to 40 MB.
    """
    for name, document in documents.items():
        content = json.dumps(document, ensure_ascii=False, sort_keys=True)  # indented they would be a third larger
        write_bytes(folder / "dev" / f"{name}.json", f"{content}\n".encode())


def write_outputs(path: Path, head: str, outputs: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Write the head's outputs on each part of the dev set, for ensembles; those of tokens as fp16, to save space."""
    kind = np.float16 if HEADS[head].reads_tokens else np.float32
    tensors = {f"{OUTPUT_PREFIX}{suffix}": np.ascontiguousarray(values, kind) for suffix, values in outputs.items()}
    write_bytes(path, safetensors.numpy.save(tensors))


def load_head(model: TaskModel, directory: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Load the head of the fine-tuned model in `directory`.

    Raises:
        UserError: there is none of the same kind and size.
    """
    if isinstance(model, FeatureModel):
        return model.load_head(directory)
    if tensors is None:
        tensors = load_tensors(directory, model.encoder.config.vocab_size)
    names = {name: [f"bert.{model.head.layer_name}.{name}"] for name, _ in model.classifier.named_parameters()}
    fill(model.classifier, names, tensors, weights_path(directory))


def save_model(model: TaskModel, job: Job, chosen: dict[str, float]) -> None:
    """Write run_dir/model: config.json, model.safetensors with the head (which has its own file on frozen features),
    the tokenizer's files, and head.json, with all else that prediction needs (`chosen` are settings found on dev).
    LoRA adapters are written to a directory of their own, and then merged. Equal weights give equal bytes."""
    folder = RunDir(job.run_dir).model
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(job.recipe.adapt, LoraAdaptation):
        adapters = [(name, adapter) for name, _, adapter in added(model.encoder)]
        peft.save_adapter(model, adapters, job.recipe.adapt, job.encoder_name, folder / peft.FOLDER)
        merge(model)
    tensors, architecture = to_published(model.encoder), model.head.transformers_class
    if isinstance(model, FeatureModel):  # nothing of `transformers` has such a head
        model.save_head(folder)
        architecture = "BertModel"
    else:
        for name, tensor in model.classifier.state_dict().items():
            tensors[f"{model.head.layer_name}.{name}"] = tensor.detach().cpu().clone()
    write_bytes(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    config = FORMATS["bert"].to_hf(model.encoder.config, architecture)
    write_json(folder / "config.json", {**config, **model.head.transformers_config(job.row)})
    for name in TOKENIZER_FILES:
        if (job.encoder_dir / name).is_file():
            shutil.copyfile(job.encoder_dir / name, folder / name)
    head = {
        "benchmark": job.benchmark,
        "head": job.row.head,
        "labels": list(job.row.labels),
        "recipe": job.recipe.model_dump(mode="json"),
        "row": job.row.model_dump(mode="json"),
    }
    write_json(folder / "head.json", {**head, **chosen})
