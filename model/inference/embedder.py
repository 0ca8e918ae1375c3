"""Sentence vectors: the pooled hidden states of an encoder.

from cloze import load_embedder

embedder = load_embedder("build/pretrain/pretrained")
vectors = embedder.embed(["one sentence", "another"])  # (2, hidden) float32
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model.common.errors import UserError, shown
from model.common.files import is_inside, load_json
from model.config.hardware import HardwareOptions
from model.encoder.encoder import Encoder
from model.heads.features import Features, assemble, encode
from model.inference import encoding
from model.tokenizer.wordpiece import special_ids

Pooling = Literal["mean", "cls", "max"]

_MODES: dict[str, Pooling] = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}  # sentence-transformers'


@dataclass(frozen=True)
class Embedder:
    """Computes sentence vectors."""

    encoder: Encoder
    tokenizer: Tokenizer
    pooling: Pooling
    """Mean or maximum over the hidden states of all tokens, including [CLS] and [SEP], or the state of [CLS]."""
    normalize: bool
    """Normalize vectors to unit length."""
    max_length: int
    """Maximum number of tokens including [CLS] and [SEP]; longer texts are truncated."""
    bf16: bool = False

    @property
    def width(self) -> int:
        """Embedding dimension."""
        return self.encoder.config.hidden_size

    def embed(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the vectors of all texts, (texts, hidden) float32; a single string is one text."""
        texts = [texts] if isinstance(texts, str) else texts
        return np.concatenate([np.zeros((0, self.width), dtype=np.float32), *self.stream(texts)])

    def stream(self, texts: Iterable[str], window_rows: int = encoding.WINDOW_ROWS) -> Iterator[np.ndarray]:
        """Yield the vectors of one window of texts at a time, in order."""
        for window in encoding.windowed(texts, len, window_rows):
            yield self._embed_window(window)

    @torch.inference_mode()
    def _embed_window(self, texts: Sequence[str]) -> np.ndarray:
        special, pieces = special_ids(self.tokenizer), encode(self.tokenizer, texts)
        starts, lengths = pieces.offsets[:-1], np.minimum(pieces.lengths, self.max_length - 2)
        features = Features(*assemble(special, (pieces, starts, lengths)), np.zeros(len(texts), dtype=np.int64))
        device = next(self.encoder.parameters()).device
        vectors = np.zeros((len(texts), self.width), dtype=np.float32)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            for rows, batch in encoding.batches(features, special.pad, device):
                mask = batch.attention_mask
                hidden = self.encoder(batch.input_ids, batch.token_type_ids, mask).last_hidden_state.float()
                present = torch.ones_like(batch.input_ids, dtype=torch.bool) if mask is None else mask
                vectors[rows] = self._pool(hidden, present).cpu().numpy()
        return vectors

    def _pool(self, hidden: Tensor, present: Tensor) -> Tensor:
        """Pool hidden states, (batch, length, hidden) fp32, where `present`, (batch, length) bool."""
        if self.pooling == "cls":
            pooled = hidden[:, 0]
        elif self.pooling == "max":
            pooled = hidden.masked_fill(~present[:, :, None], -torch.inf).amax(dim=1)
        else:
            weights = present.to(hidden.dtype)
            pooled = torch.einsum("blh,bl->bh", hidden, weights) / weights.sum(dim=1, keepdim=True)
        return F.normalize(pooled, dim=-1) if self.normalize else pooled


def load_embedder(
    directory: str | Path,
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    machine: HardwareOptions | None = None,
) -> Embedder:
    """Load the encoder of a directory: pre-trained, fine-tuned, any BERT, or a model of sentence-transformers.

    Args:
        pooling, normalize, max_length: None uses the settings in the files of sentence-transformers. Without such
            files: mean pooling, no normalization, and as many tokens as the encoder can read.
        machine: device, precision and threads; 0 threads leave torch's setting unchanged.

    Raises:
        UserError: a file is missing or damaged, the directory needs an unsupported pooling or module, or `max_length`
            is more than the encoder can read.
    """
    encoder_dir, read_pooling, read_normalize, read_length = _read_layout(Path(directory))
    encoder, tokenizer, bf16 = encoding.load(encoder_dir, machine)
    positions = encoder.config.max_position_embeddings
    if max_length is not None and not 3 <= max_length <= positions:
        raise UserError(f"max_length {max_length}: expected 3 to {positions}, the positions of the encoder")
    return Embedder(
        encoder,
        tokenizer,
        pooling=read_pooling if pooling is None else pooling,
        normalize=read_normalize if normalize is None else normalize,
        max_length=max_length or min(read_length or positions, positions),
        bf16=bf16,
    )


def _read_layout(directory: Path) -> tuple[Path, Pooling, bool, int | None]:
    """Read the encoder's directory, pooling, normalization and maximum length from modules.json and the files that it
    names. Without modules.json, returns the defaults."""
    path = directory / "modules.json"
    if not path.is_file():
        return directory, "mean", False, None
    modules: dict[str, Path] = {}
    for module in _read(path, list):
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise UserError(f"{path}: expected a list of modules, each with a type and a path")
        if not is_inside(module.get("path", "")):
            raise UserError(f"{path}: path {shown(module['path'])}: expected a directory in the model's directory")
        modules[module["type"].rpartition(".")[2]] = directory / module.get("path", "")
    unknown = modules.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown or "Transformer" not in modules:
        raise UserError(f"{path}: {', '.join(sorted(unknown)) or 'no Transformer'}; only pooled encoders are supported")
    encoder_dir = modules["Transformer"]
    lengths = directory / "sentence_bert_config.json"
    if not lengths.is_file():
        lengths = encoder_dir / "sentence_bert_config.json"
    max_length = _read(lengths, dict).get("max_seq_length") if lengths.is_file() else None
    if max_length is not None and (not isinstance(max_length, int) or max_length < 3):
        raise UserError(f"{lengths}: max_seq_length {shown(max_length)}: expected an integer of at least 3")
    pooling = _pooling_of(modules["Pooling"] / "config.json") if "Pooling" in modules else "mean"
    return encoder_dir, pooling, "Normalize" in modules, max_length


def _pooling_of(path: Path) -> Pooling:
    content = _read(path, dict)
    modes = [name.removeprefix("pooling_mode_") for name, value in content.items() if value is True]
    modes = [mode for mode in modes if f"pooling_mode_{mode}" in content]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UserError(f"{path}: pooling {' and '.join(modes) or 'none'}; expected one of {', '.join(_MODES)}")
    return _MODES[modes[0]]


def _read(path: Path, kind: type) -> Any:
    content = load_json(path, ", although modules.json names its directory")
    if not isinstance(content, kind):
        raise UserError(f"{path}: expected a JSON {'list' if kind is list else 'object'}")
    return content
