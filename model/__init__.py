"""Encoders, pre-training, fine-tuning, benchmarks and inference.

`model.load_encoder` and `model.save_encoder` read and write encoders in the layout of `transformers`;
`model.load_finetuned`, `model.load_fill_mask` and `model.load_embedder` load models for inference (docs/using.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.formats.hf_folder import load_encoder, save_encoder
    from model.inference.embedder import load_embedder
    from model.inference.fill_mask import load_fill_mask
    from model.inference.predictor import load_finetuned

_MODULES = {
    "load_embedder": "inference.embedder",
    "load_encoder": "formats.hf_folder",
    "load_fill_mask": "inference.fill_mask",
    "load_finetuned": "inference.predictor",
    "save_encoder": "formats.hf_folder",
}
__all__ = ["load_embedder", "load_encoder", "load_fill_mask", "load_finetuned", "save_encoder"]


def __getattr__(name: str) -> Any:
    """Import the public functions on first use: they import torch, which takes seconds."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"model.{_MODULES[name]}"), name)
