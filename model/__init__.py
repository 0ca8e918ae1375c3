"""What learns: the encoder, its objectives and data feeding; the benchmarks, their heads and metrics.

`model.load_encoder` and `model.save_encoder` read and write encoders in the layout of `transformers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.weights import load_encoder, save_encoder

__all__ = ["load_encoder", "save_encoder"]


def __getattr__(name: str) -> Any:
    """The functions above when they are first asked for: importing them brings torch, which takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from model import weights

    return getattr(weights, name)
