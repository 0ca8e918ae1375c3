"""Load what Cloze has trained: encoders, fine-tuned models, and the board that ranks them.

from cloze import load_board, load_encoder, load_finetuned

Inference needs only `pip install cloze`; `load_board` and the pipeline need `cloze[pipeline]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import model

if TYPE_CHECKING:
    from model import load_embedder, load_encoder, load_fill_mask, load_finetuned, save_encoder
    from tasks.leaderboard.history import load_board

__all__ = ["load_board", "load_embedder", "load_encoder", "load_fill_mask", "load_finetuned", "save_encoder"]


def __getattr__(name: str) -> Any:
    """Import the public functions on first use: most of them import torch, which takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "load_board":
        from tasks.leaderboard.history import load_board

        return load_board
    return getattr(model, name)
