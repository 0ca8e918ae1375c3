"""An encoder's hidden states as features: which ones (Devlin et al. 2019, table 7), computed, and kept in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from model.common.errors import UserError
from model.config.finetuning import Combination
from model.encoder.encoder import Encoder
from model.heads.batches import FinetuneBatch, collate, evaluation_batches
from model.heads.features import Features

Pooling = Literal["mean", "cls"]
_BATCH_TOKENS = 4096


def chosen_layers(combination: Combination, num_layers: int) -> tuple[int, ...]:
    """The numbers of the hidden states that a combination reads: 0 the embeddings', 1 the lowest layer's, and so on.

    Raises:
        UserError: with one layer only, a combination of several, or the one before the last, makes no sense.
    """
    if combination == "embeddings":
        return (0,)
    if combination == "last":
        return (num_layers,)
    if num_layers < 2:
        raise UserError(f"adapt.combination: {combination} needs an encoder of 2 layers or more; take last")
    if combination == "second_to_last":
        return (num_layers - 1,)
    first = 1 if combination == "weighted_all" else max(1, num_layers - 3)
    return tuple(range(first, num_layers + 1))


def hidden_states(encoder: Encoder, batch: FinetuneBatch, layers: tuple[int, ...]) -> Tensor:
    """(sequences, length, len(layers), hidden) fp32: the states after these layers (0: after the embeddings)."""
    parts: list[nn.Module] = [encoder.embeddings, *encoder.layers]
    found: dict[int, Tensor] = {}
    with contextlib.ExitStack() as hooks:
        for number in layers:

            def keep(module: nn.Module, arguments: object, output: Tensor, number: int = number) -> None:
                found[number] = output

            hooks.callback(parts[number].register_forward_hook(keep).remove)
        encoder(batch.input_ids, batch.token_type_ids, batch.attention_mask)
    states = torch.stack([found[number].float() for number in layers], dim=1)
    return states.view(*batch.input_ids.shape, *states.shape[1:])


def pooled(states: Tensor, mask: Tensor | None, pooling: Pooling) -> Tensor:
    """(sequences, length, ...) to (sequences, ...): the mean over the tokens that `mask` shows, or the first token."""
    if pooling == "cls":
        return states[:, 0]
    if mask is None:
        return states.mean(1)
    shown = mask.view(*mask.shape, *[1] * (states.ndim - 2)).to(states.dtype)
    return (states * shown).sum(1) / shown.sum(1)


class StateStore:
    """The hidden states of all sequences that a job reads, each computed once.

    A sequence is found again by its content, so training rows and every part of the dev set lie here together.

    Args:
        encoder: frozen, in evaluation mode.
        layers: see `chosen_layers`.
        pooling: what is kept of a sequence; None keeps all tokens.
    """

    def __init__(self, encoder: Encoder, layers: tuple[int, ...], pooling: Pooling | None) -> None:
        self._encoder = encoder
        self._layers = layers
        self._pooling = pooling
        self._places: dict[bytes, int] = {}  # of a sequence: where its states begin
        self._values: Tensor | None = None  # (num_kept, layers, hidden)

    def fill(self, parts: Iterable[Features], pad_id: int, bf16: bool, max_bytes: int) -> None:
        """Compute all of them in one pass, and keep them (in bf16 where products are); not so if they take more than
        `max_bytes`: then each batch's are computed when they are asked for."""
        parts = list(parts)
        device = self._encoder.embeddings.token.weight.device
        dtype = torch.bfloat16 if bf16 else torch.float32
        counts = [len(part.boundaries) if self._pooling else len(part.sequences.values) for part in parts]
        shape = sum(counts), len(self._layers), self._encoder.config.hidden_size
        num_bytes = shape[0] * shape[1] * shape[2] * dtype.itemsize
        if num_bytes > max_bytes:
            print(
                f"features take {num_bytes:,} bytes, more than max_feature_bytes {max_bytes:,}: "
                "they are computed anew in every epoch",
                flush=True,
            )
            return
        values, end = torch.empty(shape, dtype=dtype, device=device), 0
        for part in parts:
            for rows in evaluation_batches(part.row_lengths, max(1, _BATCH_TOKENS // part.group_size)):
                batch = collate(part, rows, pad_id).to(device)
                states = self.compute(batch, bf16)
                kept, lengths = self._kept(states, batch)
                values[end : end + len(kept)] = kept.to(dtype)
                for key, length in zip(_keys(batch), lengths):
                    self._places.setdefault(key, end)
                    end += length
        self._values = values

    def compute(self, batch: FinetuneBatch, bf16: bool) -> Tensor:
        """(sequences, length, layers, hidden), or (sequences, layers, hidden) where they are pooled; fp32."""
        device = batch.input_ids.device
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            states = hidden_states(self._encoder, batch, self._layers)
        return states if self._pooling is None else pooled(states, batch.attention_mask, self._pooling)

    def of(self, batch: FinetuneBatch) -> Tensor:
        """The same, from memory where they are kept; 0 at padding then."""
        if self._values is None:
            return self.compute(batch, torch.is_autocast_enabled(batch.input_ids.device.type))
        begins = np.array([self._places.get(key, -1) for key in _keys(batch)])
        if (begins < 0).any():  # a sequence of another job's: nothing is kept of it
            return self.compute(batch, self._values.dtype == torch.bfloat16)
        device = self._values.device
        if self._pooling is not None:
            return self._values[torch.from_numpy(begins).to(device)].float()
        mask = _mask_of(batch)
        index = torch.from_numpy(begins).to(device)[:, None] + torch.arange(mask.shape[1], device=device)
        states = self._values[torch.where(mask, index, 0)].float()
        return states * mask[:, :, None, None]

    def _kept(self, states: Tensor, batch: FinetuneBatch) -> tuple[Tensor, list[int]]:
        """What is kept of a batch, in a row, and how many rows are each sequence's."""
        if self._pooling is not None:
            return states, [1] * len(states)
        mask = _mask_of(batch)
        return states[mask], mask.sum(1).tolist()


def _mask_of(batch: FinetuneBatch) -> Tensor:
    mask = batch.attention_mask
    return torch.ones_like(batch.input_ids, dtype=torch.bool) if mask is None else mask


def _keys(batch: FinetuneBatch) -> list[bytes]:
    """What names each sequence: its token ids and segments, without padding."""
    ids = (batch.input_ids * 2 + batch.token_type_ids).cpu().numpy()
    lengths = _mask_of(batch).sum(1).tolist()
    return [row[:length].tobytes() for row, length in zip(ids, lengths)]
