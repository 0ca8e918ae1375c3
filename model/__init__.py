"""What learns: the encoder, its objectives and data feeding; the benchmarks, their heads and metrics.

`model.load_encoder` and `model.save_encoder` read and write encoders in the layout of `transformers`;
`model.load_finetuned`, `model.load_fill_mask` and `model.load_embedder` give what answers (docs/using.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.embedder import load_embedder
    from model.fill_mask import load_fill_mask
    from model.finetuned import load_finetuned
    from model.weights import load_encoder, save_encoder

__all__ = ["load_embedder", "load_encoder", "load_fill_mask", "load_finetuned", "save_encoder"]

_ROOMS = {"load_embedder": "embedder", "load_fill_mask": "fill_mask", "load_finetuned": "finetuned"}


def __getattr__(name: str) -> Any:
    """The functions above when they are first asked for: importing them brings torch, which takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"model.{_ROOMS.get(name, 'weights')}"), name)
