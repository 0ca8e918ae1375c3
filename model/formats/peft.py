"""LoRA adapters in the layout of the library `peft`: adapter_config.json and adapter_model.safetensors.

The adapters take a few megabytes. With the encoder that they were trained on, they form the fine-tuned model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from safetensors.torch import save
from torch import Tensor, nn

from model.common.files import write_bytes, write_json
from model.config.finetuning import LoraAdaptation
from model.formats.hf_bert import PROJECTIONS
from model.heads.task_model import TaskModel

FOLDER = "adapter"

_PLACES = {
    **{piece: f"attention.self.{piece}" for piece in PROJECTIONS},
    "output": "attention.output.dense",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
}
_PREFIX = "base_model.model."


class LowRankAdapter(Protocol):
    """Low-rank terms for some of the equally sized parts of a matrix; see `model.finetune.lora.LowRank`."""

    rank: int
    pieces: tuple[int, ...]
    down: nn.Parameter
    up: nn.Parameter


def save_adapter(
    model: TaskModel, adapters: Iterable[tuple[str, LowRankAdapter]], settings: LoraAdaptation, base: str, folder: Path
) -> None:
    """Write the adapters, the head and, if it was trained, the pooler to `folder`, before the adapters are merged.

    Args:
        adapters: the adapters by the name of their matrix in the encoder.
        base: name of the encoder in config.json.
    """
    pooler = model.encoder.pooler
    tensors: dict[str, Tensor] = {}
    for name, adapter in adapters:
        layer, matrix = re.fullmatch(r"layers\.(\d+)\.(.+)", name).groups()  # type: ignore[union-attr]
        downs = adapter.down.split(adapter.rank)
        for piece, down, up in zip(adapter.pieces, downs, adapter.up):
            target = PROJECTIONS[piece] if matrix.endswith("query_key_value") else matrix.removeprefix("attention.")
            place = f"{_PREFIX}bert.encoder.layer.{layer}.{_PLACES[target]}"
            tensors |= {f"{place}.lora_A.weight": down, f"{place}.lora_B.weight": up}
    whole = {model.head.layer_name: (model.head.layer_name, model.classifier)}
    if pooler.weight.requires_grad:
        whole["pooler"] = ("bert.pooler.dense", pooler)
    for place, module in whole.values():
        tensors |= {f"{_PREFIX}{place}.{name}": value for name, value in module.state_dict().items()}
    content = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_bytes(folder / "adapter_model.safetensors", save(content, metadata={"format": "pt"}))
    places = "|".join(re.escape(_PLACES[target]) for target in sorted(settings.targets))
    write_json(
        folder / "adapter_config.json",
        {
            "base_model_name_or_path": base,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "lora_alpha": settings.scale * settings.rank,
            "lora_dropout": settings.dropout,
            "modules_to_save": sorted(whole),
            "peft_type": "LORA",
            "r": settings.rank,
            "target_modules": rf".*\.layer\.\d+\.({places})",
            "task_type": model.head.peft_task_type,
        },
    )
