"""A small model on an encoder's frozen hidden states (Devlin et al. 2019, section 5.3): BiLSTM and linear layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.common.files import write_bytes
from model.common.rng import Domain, Key
from model.config.finetuning import FeatureAdaptation
from model.encoder.encoder import Encoder
from model.finetune.hidden_states import StateStore, chosen_layers
from model.heads.batches import FinetuneBatch
from model.heads.features import Features
from model.heads.task_model import TaskModel, output_layer
from model.ops.dropout_add_norm import drop
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext
from model.ops.keyed_dropout import DropoutKey

HEAD_FILE = "features_head.safetensors"


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
        self.store = StateStore(encoder, layers, None if self.head.reads_tokens else settings.pooling)
        self._max_feature_bytes = settings.max_feature_bytes
        width = encoder.config.hidden_size
        self.mix: nn.Parameter | None = None
        """(layers + 1,): scores whose softmax weighs the layers, and what their sum is multiplied by, less 1."""
        if settings.combination == "concatenated_last_four":
            width *= len(layers)
        elif len(layers) > 1:
            self.mix = nn.Parameter(torch.zeros(len(layers) + 1))
        self.lstms = nn.ModuleList()
        for number in range(settings.lstm_layers if self.head.reads_tokens else 0):
            lstm = nn.LSTM(width, settings.lstm_size // 2, batch_first=True, bidirectional=True)
            _draw(lstm, Key(seed).for_(Domain.LSTM, number))
            self.lstms.append(lstm)
            width = settings.lstm_size
        self.classifier = output_layer(width, self.num_outputs, encoder.config.initializer_range, seed)

    def train(self, mode: bool = True) -> Self:
        """As torch's; the encoder stays in evaluation mode."""
        super().train(mode)
        self.encoder.eval()
        return self

    def compute_features(self, parts: Iterable[Features], pad_id: int, bf16: bool) -> None:
        """Compute the features of all sequences once; without this they are computed with every batch."""
        self.store.fill(parts, pad_id, bf16, self._max_feature_bytes)

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
        num_sequences, length = batch.input_ids.shape
        keys = None
        if key is not None and self.training and self.dropout:
            keys = key.expand(len(self.lstms) + 1)
        rows = torch.arange(length if self.head.reads_tokens else 1, dtype=torch.int32, device=hidden.device)[None]

        def dropped(hidden: Tensor, number: int) -> Tensor:
            flat = hidden.reshape(-1, hidden.shape[-1])
            return drop(flat, rows, None if keys is None else keys[number], self.dropout).view(hidden.shape)

        mask = batch.attention_mask
        lengths = torch.full((num_sequences,), length) if mask is None else mask.sum(1).cpu()
        for number, lstm in enumerate(self.lstms):
            packed = nn.utils.rnn.pack_padded_sequence(
                dropped(hidden, number), lengths, batch_first=True, enforce_sorted=False
            )
            hidden, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=length)
        logits: Tensor = self.classifier(dropped(hidden, len(self.lstms)))
        return logits

    def save_head(self, folder: Path) -> None:
        """Write all weights but the encoder's to `folder`. Equal weights give equal bytes."""
        write_bytes(folder / HEAD_FILE, save(self._own_state(), metadata={"format": "pt"}))

    def load_head(self, folder: Path) -> None:
        """Read them again.

        Raises:
            UserError: the file is missing or damaged, or is of a model of other sizes.
        """
        path = folder / HEAD_FILE
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


def _draw(lstm: nn.LSTM, seed: int) -> None:
    """torch's own first weights, uniform up to one by the root of the hidden size, each by a generator of its own."""
    bound = 1 / math.sqrt(lstm.hidden_size)
    with torch.no_grad():
        for name, parameter in lstm.named_parameters():
            parameter.uniform_(
                -bound,
                bound,
                generator=torch.Generator().manual_seed(Key(seed).for_(Domain.INITIALIZATION, *name.encode())),
            )
