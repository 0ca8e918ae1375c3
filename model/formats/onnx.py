"""ONNX export of an encoder, a masked language model or a fine-tuned model, for any batch size and length.

Inputs are `input_ids`, `attention_mask` and `token_type_ids`, (batch, length) int64, or (batch, choices,
length) for choice. Encoders output `last_hidden_state` (batch, length, hidden) and, if they have a pooler,
`pooler_output` (batch, hidden); fine-tuned models output `logits` as in `transformers`, or `start_logits` and
`end_logits` (batch, length); masked language models output `logits` (batch, length, vocabulary), in a separate file.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.common.errors import UserError, missing_package
from model.encoder.encoder import Encoder
from model.heads.batches import FinetuneBatch
from model.heads.task_model import TaskModel
from model.objectives.masked_lm import MaskedLanguageHead

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = 1e-4
"""Maximum difference between the outputs of ONNX and of the model."""
_OPSET = 18
# (batch, length) of the tested inputs, limited to the encoder's positions
_SHAPES = ((1, 3), (2, 8), (5, 37), (3, 128), (1, 512))


class MaskedLanguageModel(nn.Module):
    """An encoder with the masked language modeling head at every position."""

    def __init__(self, encoder: Encoder, head: MaskedLanguageHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute logits, (batch, length, vocabulary), from inputs of (batch, length)."""
        hidden = self.encoder(input_ids, token_type_ids, attention_mask).last_hidden_state
        logits: Tensor = self.head(hidden, self.encoder.embeddings.token.weight)
        return logits


Model = Encoder | MaskedLanguageModel | TaskModel


class _Graph(nn.Module):
    """The traced module, with positional inputs and without data-dependent branches."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Any:
        shape = input_ids.shape
        flat = [values.reshape(-1, shape[-1]) for values in (input_ids, token_type_ids, attention_mask)]
        if isinstance(self.model, MaskedLanguageModel):
            return self.model(*flat)
        hidden, pooled = encoder_of(self.model)(*flat)
        if isinstance(self.model, Encoder):
            return (hidden, pooled) if self.model.has_pooler else hidden
        logits = self.model.classifier(hidden if self.model.head.reads_tokens else pooled)
        if len(self.model.head.output_names) > 1:
            return logits.unbind(-1)
        return logits.view(shape[0], shape[1]) if self.model.group_size > 1 else logits


def encoder_of(model: Model) -> Encoder:
    """Return the encoder of any model."""
    return model if isinstance(model, Encoder) else model.encoder


def _outputs(model: Model) -> dict[str, dict[int, str]]:
    """Return the outputs of the graph, in order, with their dynamic axes."""
    if isinstance(model, Encoder):
        pooled = {"pooler_output": {0: "batch"}} if model.has_pooler else {}
        return {"last_hidden_state": {0: "batch", 1: "length"}, **pooled}
    if isinstance(model, MaskedLanguageModel):
        return {"logits": {0: "batch", 1: "length"}}
    second = {1: "length"} if model.head.reads_tokens else {1: "choices"} if model.group_size > 1 else {}
    return {name: {0: "batch", **second} for name in model.head.output_names}


def write_onnx(model: Model, path: Path) -> float:
    """Write the graph of `model` (in evaluation mode, fp32, on the CPU) and compare its outputs with the model's.

    Returns:
        The largest difference of an output over several batches and lengths with padding.

    Raises:
        UserError: onnx or onnxruntime is not installed, `transformers` does not support the head, or the outputs differ
            by more than TOLERANCE (the file is then deleted).
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise missing_package(error, "ONNX export") from None
    if isinstance(model, TaskModel) and model.has_frozen_features:
        raise UserError(f"{path}: heads on frozen features cannot be exported to ONNX; export the encoder instead")
    model = model.eval()
    graph = _Graph(model).eval()
    example = _inputs(model, 2, 8, seed=0)
    outputs = _outputs(model)
    names = {0: "batch", example[0].ndim - 1: "length"} | ({1: "choices"} if example[0].ndim == 3 else {})
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # about constant shapes, which are tested below
        torch.onnx.export(
            graph,
            tuple(example),
            str(path),
            dynamo=False,
            opset_version=_OPSET,
            input_names=list(INPUTS),
            output_names=list(outputs),
            dynamic_axes={**dict.fromkeys(INPUTS, names), **outputs},
        )
    difference = largest_difference(model, path)
    if not difference <= TOLERANCE:
        path.unlink()
        raise UserError(
            f"{path}: outputs differ from the model's by {difference:.2g}, more than {TOLERANCE:g}: deleted"
        )
    return difference


def largest_difference(model: Model, path: Path) -> float:
    """Compute the largest difference between onnxruntime's and the model's outputs, on batches with padding."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = 0.0
    for seed, (batch, length) in enumerate(_SHAPES):
        length = min(length, encoder_of(model).config.max_position_embeddings)
        given = _inputs(model, batch, length, seed)
        theirs = session.run(None, {name: values.numpy() for name, values in zip(INPUTS, given)})
        for one, other in zip(theirs, _ours(model, given), strict=True):
            found = max(found, float(np.abs(one - other).max()))
    return found


def _ours(model: Model, given: list[Tensor]) -> list[npt.NDArray[np.float32]]:
    """Compute the model's outputs as in prediction, without masking padding, as in the ONNX graph."""
    ids, mask, segments = given
    with torch.no_grad():
        if isinstance(model, Encoder):
            values = [value.numpy() for value in model(ids, segments, mask)]
            return values if model.has_pooler else values[:1]
        if isinstance(model, MaskedLanguageModel):
            return [model(ids, segments, mask).numpy()]
        ids, segments, seen = (values.reshape(-1, ids.shape[-1]) for values in (ids, segments, mask.bool()))
        numbers = torch.arange(len(ids))
        logits = model(FinetuneBatch(ids, segments, seen, numbers, numbers))
        if len(model.head.output_names) == 1:
            return [logits.numpy()]
        hidden = model.encoder(ids, segments, seen).last_hidden_state
        logits = torch.where(seen[:, :, None], logits, model.classifier(hidden))
        return [part.numpy() for part in logits.unbind(-1)]


def _inputs(model: Model, batch: int, length: int, seed: int) -> list[Tensor]:
    """Generate random ids, mask and segments; the first row has no padding."""
    encoder = encoder_of(model)
    shape = (batch, length)
    if isinstance(model, TaskModel) and model.group_size > 1:
        shape = (batch, model.group_size, length)  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, encoder.config.vocab_size, shape, generator=generator)
    ends = torch.randint(1, length + 1, shape[:-1], generator=generator)
    ends.view(-1)[0] = length
    places = torch.arange(length)
    mask = (places < ends[..., None]).long()
    segments = ((places >= ends[..., None] // 2) & (mask == 1)).long() * min(1, encoder.config.type_vocab_size - 1)
    return [torch.where(mask == 1, ids, encoder.config.pad_token_id), mask, segments]
