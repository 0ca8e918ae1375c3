"""The outputs of a fine-tuned model for evaluation and inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.heads.batches import collate, evaluation_batches, scatter_tokens
from model.heads.features import Features
from model.heads.task_model import TaskModel

if TYPE_CHECKING:  # inference does without Lightning
    from model.engine.trainer import Trainer

_MAX_TOKENS = {"cpu": 4096, "cuda": 65536}  # of a batch; more does not fit a core's cache


def predict(
    model: TaskModel, features: Features, pad_id: int, bf16: bool, trainer: Trainer | None = None
) -> npt.NDArray[np.float32]:
    """Compute the head's outputs for all rows: (rows, width), or (tokens, width) for heads that read tokens.

    Args:
        trainer: the ranks of this trainer share the batches; each gets all outputs.

    Raises:
        Paused: the trainer was asked to stop, and has one rank.
    """
    device = next(model.parameters()).device
    outputs = np.zeros((model.head.num_output_rows(features), model.output_width), dtype=np.float32)
    max_tokens = _MAX_TOKENS.get(device.type, 4096) // features.group_size
    batches = list(evaluation_batches(features.row_lengths, max_tokens))
    rank, ranks = (0, 1) if trainer is None else (trainer.fabric.global_rank, trainer.fabric.world_size)
    module: nn.Module = model if trainer is None or ranks == 1 else trainer.module
    model.eval()
    no_gradients = torch.inference_mode() if ranks == 1 else torch.no_grad()
    with no_gradients, torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        # Each rank takes as many turns, the last one perhaps in vain: ranks of a sharded module compute together.
        for turn in range(-(-len(batches) // ranks)):
            number = turn * ranks + rank
            rows = batches[min(number, len(batches) - 1)]
            logits = module(collate(features, rows, pad_id).to(device)).cpu().numpy()
            if number >= len(batches):
                continue
            if model.head.reads_tokens:
                scatter_tokens(features, rows, logits, outputs)
            else:
                outputs[rows] = logits
            if trainer is not None and ranks == 1:
                trainer.check_stop()
    if trainer is not None and ranks > 1:
        total = trainer.fabric.all_reduce(torch.from_numpy(outputs).to(device), reduce_op="sum")
        assert isinstance(total, Tensor)
        outputs = total.cpu().numpy()
    return outputs
