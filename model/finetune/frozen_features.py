"""A small model on an encoder's frozen hidden states (Devlin et al. 2019, section 5.3): BiLSTM and linear layer."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.common.files import write_bytes
from model.common.rng import Domain, Key
from model.config.finetuning import Combination, FeatureAdaptation
from model.encoder.encoder import Encoder
from model.heads.batches import FinetuneBatch, collate, evaluation_batches
from model.heads.features import Features
from model.heads.task_model import TaskModel, output_layer
from model.ops.dropout_add_norm import drop
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext
from model.ops.keyed_dropout import DropoutKey

_HEAD_FILE = "features_head.safetensors"
_BATCH_TOKENS = 4096


class FeatureModel(TaskModel):
    """A combination of frozen hidden states, for span and tags a BiLSTM over them, and one linear layer.

    For classes, regression and choice a sequence's states are pooled first, and there is no BiLSTM. The encoder is
    always in evaluation mode and has no gradients; dropout is that of the small model, before each of its layers.
    First weights are keyed by `seed`.
    """

    has_frozen_features = True

    def __init__(
        self, encoder: Encoder, benchmark: Benchmark, dropout: float, settings: FeatureAdaptation, seed: int
    ) -> None:
        super().__init__(encoder, benchmark, dropout, seed)
        encoder.requires_grad_(False)
        layers = chosen_layers(settings.combination, encoder.config.num_hidden_layers)
        pooling = None if self.head.reads_tokens else settings.pooling
        self.store = StateStore(encoder, layers, pooling, settings.max_feature_bytes)
        width = encoder.config.hidden_size
        # (layers + 1,): scores whose softmax weighs the layers, and the factor of their sum, less 1
        self.mix: nn.Parameter | None = None
        if settings.combination == "concatenated_last_four":
            width *= len(layers)
        elif len(layers) > 1:
            self.mix = nn.Parameter(torch.zeros(len(layers) + 1))
        self.lstms = nn.ModuleList()
        for number in range(settings.lstm_layers if self.head.reads_tokens else 0):
            lstm = nn.LSTM(width, settings.lstm_size // 2, batch_first=True, bidirectional=True)
            _initialize(lstm, Key(seed).for_(Domain.LSTM, number))
            self.lstms.append(lstm)
            width = settings.lstm_size
        self.classifier = output_layer(width, self.num_outputs, encoder.config.initializer_range, seed)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.encoder.eval()  # always
        return self

    def forward(
        self, batch: FinetuneBatch, key: DropoutKey | None = None, context: ForwardContext = DEFAULT_CONTEXT
    ) -> Tensor:
        """Logits in fp32, as `TaskModel` gives them."""
        states = self.store.of(batch)
        with torch.autocast(batch.input_ids.device.type, enabled=False):
            logits = self._read(self._combined(states), batch, key)
        return self.finish(logits, batch)

    def _combined(self, states: Tensor) -> Tensor:
        """(..., layers, hidden) to (..., width)."""
        if self.mix is None:
            return states.flatten(-2)
        weights = torch.softmax(self.mix[:-1], 0) * (1 + self.mix[-1])
        return (states * weights[:, None]).sum(-2)

    def _read(self, hidden: Tensor, batch: FinetuneBatch, key: DropoutKey | None) -> Tensor:
        length = batch.input_ids.shape[1]
        keys = None
        if key is not None and self.training and self.dropout:
            keys = key.expand(len(self.lstms) + 1)
        rows = torch.arange(length if self.head.reads_tokens else 1, dtype=torch.int32, device=hidden.device)[None]

        def dropped(hidden: Tensor, number: int) -> Tensor:
            flat = hidden.reshape(-1, hidden.shape[-1])
            return drop(flat, rows, None if keys is None else keys[number], self.dropout).view(hidden.shape)

        lengths = _is_token(batch).sum(1).cpu()
        for number, lstm in enumerate(self.lstms):
            packed = nn.utils.rnn.pack_padded_sequence(
                dropped(hidden, number), lengths, batch_first=True, enforce_sorted=False
            )
            hidden, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=length)
        logits: Tensor = self.classifier(dropped(hidden, len(self.lstms)))
        return logits

    def save_head(self, folder: Path) -> None:
        """Write all weights but the encoder's to `folder`. Equal weights give equal bytes."""
        write_bytes(folder / _HEAD_FILE, save(self._own_state(), metadata={"format": "pt"}))

    def load_head(self, folder: Path) -> None:
        """Read what `save_head` wrote.

        Raises:
            UserError: the file is missing or damaged, or is of a model of other sizes.
        """
        path = folder / _HEAD_FILE
        if not path.is_file():
            raise UserError(f"{path}: missing; expected the weights above the encoder; fine-tune again")
        try:
            found = load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path}: damaged ({error}); fine-tune again") from None
        shapes = {name: value.shape for name, value in self._own_state().items()}
        if {name: value.shape for name, value in found.items()} != shapes:
            raise UserError(f"{path}: does not fit head.json beside it; fine-tune again")
        self.load_state_dict(found, strict=False)

    def _own_state(self) -> dict[str, Tensor]:
        state = {name: value for name, value in self.state_dict().items() if not name.startswith("encoder.")}
        return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def _initialize(lstm: nn.LSTM, seed: int) -> None:
    """Draw weights as torch does, uniform up to 1 / sqrt(hidden size), each with a generator of its own."""
    bound = 1 / math.sqrt(lstm.hidden_size)
    with torch.no_grad():
        for name, parameter in lstm.named_parameters():
            key = Key(seed).for_(Domain.INITIALIZATION, *name.encode())
            parameter.uniform_(-bound, bound, generator=torch.Generator().manual_seed(key))


def chosen_layers(combination: Combination, num_layers: int) -> tuple[int, ...]:
    """Numbers of the hidden states that a combination reads (table 7): 0 the embeddings', 1 the lowest layer's...

    Raises:
        UserError: with one layer only, a combination of several, or the one before the last, makes no sense.
    """
    if num_layers < 2 and combination not in ("embeddings", "last"):
        raise UserError(f"adapt.combination: {combination} needs an encoder of 2 layers or more; take last")
    ranges = {
        "embeddings": (0, 0),
        "second_to_last": (num_layers - 1, num_layers - 1),
        "last": (num_layers, num_layers),
        "weighted_all": (1, num_layers),
    }
    first, last = ranges.get(combination, (max(1, num_layers - 3), num_layers))
    return tuple(range(first, last + 1))


class StateStore:
    """The hidden states of all sequences that a job reads, each computed once.

    Sequences are identified by their content, so one store holds training rows and every part of the dev set.

    Args:
        encoder: frozen, in evaluation mode.
        layers: see `chosen_layers`.
        pooling: how a sequence's states become one; None keeps those of all tokens.
        max_bytes: if the states take more, they are not kept but computed with every batch.
    """

    def __init__(
        self, encoder: Encoder, layers: tuple[int, ...], pooling: Literal["mean", "cls"] | None, max_bytes: int
    ) -> None:
        self._encoder, self._layers, self._pooling, self._max_bytes = encoder, layers, pooling, max_bytes
        self._begins: dict[bytes, int] = {}  # of a sequence: the first row of its states
        self._values: Tensor | None = None  # (num_kept, layers, hidden)

    def fill(self, parts: Sequence[Features], pad_id: int, bf16: bool) -> None:
        """Compute the states of all sequences in one pass, and keep them, in bf16 where products are."""
        device = self._encoder.embeddings.token.weight.device
        dtype = torch.bfloat16 if bf16 else torch.float32
        counts = [len(part.boundaries) if self._pooling else len(part.sequences.values) for part in parts]
        shape = sum(counts), len(self._layers), self._encoder.config.hidden_size
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes > self._max_bytes:
            limit = f"more than max_feature_bytes {self._max_bytes:,}"
            print(f"features take {num_bytes:,} bytes, {limit}: they are recomputed in every epoch", flush=True)
            return
        values, end = torch.empty(shape, dtype=dtype, device=device), 0
        for part in parts:
            for rows in evaluation_batches(part.row_lengths, max(1, _BATCH_TOKENS // part.group_size)):
                batch = collate(part, rows, pad_id).to(device)
                is_kept = self._is_kept(batch)
                kept = self.compute(batch, bf16).view(*is_kept.shape, *shape[1:])[is_kept]
                values[end : end + len(kept)] = kept.to(dtype)
                for key, length in zip(_keys(batch), is_kept.sum(1).tolist()):
                    self._begins.setdefault(key, end)
                    end += length
        self._values = values

    def compute(self, batch: FinetuneBatch, bf16: bool) -> Tensor:
        """(sequences, length, layers, hidden), or (sequences, layers, hidden) where they are pooled; fp32."""
        device = batch.input_ids.device
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            states = _hidden_states(self._encoder, batch, self._layers)
        return states if self._pooling is None else pooled(states, batch.attention_mask, self._pooling)

    def of(self, batch: FinetuneBatch) -> Tensor:
        """The same, from memory where they are kept; 0 at padding then."""
        if self._values is None:
            return self.compute(batch, torch.is_autocast_enabled(batch.input_ids.device.type))
        begins = torch.tensor([self._begins.get(key, -1) for key in _keys(batch)])
        if (begins < 0).any():  # a sequence of another job's: nothing is kept of it
            return self.compute(batch, self._values.dtype == torch.bfloat16)
        is_kept = self._is_kept(batch)
        device = self._values.device
        index = begins.to(device)[:, None] + torch.arange(is_kept.shape[1], device=device)
        states = self._values[torch.where(is_kept, index, 0)].float() * is_kept[:, :, None, None]
        return states if self._pooling is None else states[:, 0]

    def _is_kept(self, batch: FinetuneBatch) -> Tensor:
        """(sequences, length), or (sequences, 1) where they are pooled."""
        return _is_token(batch) if self._pooling is None else torch.ones_like(batch.input_ids[:, :1], dtype=torch.bool)


def _hidden_states(encoder: Encoder, batch: FinetuneBatch, layers: tuple[int, ...]) -> Tensor:
    """(sequences, length, len(layers), hidden) fp32: the states after these layers (0: after the embeddings)."""
    parts: list[nn.Module] = [encoder.embeddings, *encoder.layers]
    found: dict[int, Tensor] = {}

    def keep(number: int, module: nn.Module, arguments: object, output: Tensor) -> None:
        found[number] = output

    with contextlib.ExitStack() as hooks:
        for number in layers:
            hooks.enter_context(parts[number].register_forward_hook(functools.partial(keep, number)))
        encoder(batch.input_ids, batch.token_type_ids, batch.attention_mask)
    states = torch.stack([found[number].float() for number in layers], dim=1)
    return states.view(*batch.input_ids.shape, *states.shape[1:])


def pooled(states: Tensor, mask: Tensor | None, pooling: Literal["mean", "cls"]) -> Tensor:
    """(sequences, length, ...) to (sequences, ...): the mean over the tokens that `mask` shows, or the first token."""
    if pooling == "cls":
        return states[:, 0]
    if mask is None:
        return states.mean(1)
    shown = mask.view(*mask.shape, *[1] * (states.ndim - 2)).to(states.dtype)
    return (states * shown).sum(1) / shown.sum(1)


def _is_token(batch: FinetuneBatch) -> Tensor:
    mask = batch.attention_mask
    return torch.ones_like(batch.input_ids, dtype=torch.bool) if mask is None else mask


def _keys(batch: FinetuneBatch) -> list[bytes]:
    """The content of each sequence: its token ids and segments, without padding."""
    ids = (batch.input_ids * 2 + batch.token_type_ids).cpu().numpy()
    lengths = _is_token(batch).sum(1).tolist()
    return [row[:length].tobytes() for row, length in zip(ids, lengths)]
