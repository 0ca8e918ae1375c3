"""LoRA's additions alone, in the layout of the library `peft`: adapter_config.json and adapter_model.safetensors.

A few megabytes that turn the encoder they were trained on into the fine-tuned model.
"""

from __future__ import annotations

import re
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from model.common.files import write_bytes, write_json
from model.config.adaptation import LoraAdaptation
from model.finetune.lora import PIECES, added
from model.heads.task_model import TaskModel

FOLDER = "adapter"

_PLACES = {
    **{piece: f"attention.self.{piece}" for piece in PIECES},
    "output": "attention.output.dense",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
}
_PREFIX = "base_model.model."


def save_adapter(model: TaskModel, settings: LoraAdaptation, base: str, folder: Path) -> None:
    """Write the additions, the head and, where it was trained, the pooler to `folder`, before they are merged.

    Args:
        base: what config.json calls the encoder that they belong to.
    """
    pooler = model.encoder.pooler
    tensors: dict[str, Tensor] = {}
    for name, addition in added(model.encoder):
        layer, matrix = re.fullmatch(r"layers\.(\d+)\.(.+)", name).groups()  # type: ignore[union-attr]
        downs = addition.down.split(addition.rank)
        for piece, down, up in zip(addition.pieces, downs, addition.up):
            target = PIECES[piece] if matrix.endswith("query_key_value") else matrix.removeprefix("attention.")
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
