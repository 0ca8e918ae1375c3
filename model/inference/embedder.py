"""Sentence vectors: an encoder's hidden states, pooled.

from model import load_embedder

embedder = load_embedder("build/pretrain/pretrained")
vectors = embedder.embed(["one sentence", "another"])  # (2, hidden) float32
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model.common.errors import UserError
from model.common.windowing import WINDOW_ROWS, windowed
from model.config.hardware import HardwareOptions
from model.encoder.encoder import Encoder
from model.inference import encoding
from model.tokenizer.wordpiece import special_ids

Pooling = Literal["mean", "cls", "max"]

_MODES: dict[str, Pooling] = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}  # sentence-transformers'


@dataclass(frozen=True)
class Layout:
    """How a directory's vectors are computed; the defaults apply without the files of sentence-transformers."""

    encoder_dir: Path
    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int | None = None


@dataclass(frozen=True)
class Embedder:
    """Computes vectors of texts."""

    encoder: Encoder
    tokenizer: Tokenizer
    pooling: Pooling
    """Mean or maximum over the hidden states of all tokens including [CLS] and [SEP], or the state of [CLS]."""
    normalize: bool
    """Whether vectors are normalized to unit length."""
    max_length: int
    """Maximum number of tokens including [CLS] and [SEP]; longer texts are truncated."""
    bf16: bool = False
    """Whether matrix products are computed in bf16."""

    @property
    def width(self) -> int:
        """Embedding dimension."""
        return self.encoder.config.hidden_size

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of all texts, (texts, hidden) float32."""
        return np.concatenate([np.zeros((0, self.width), dtype=np.float32), *self.stream(texts)])

    def stream(self, texts: Iterable[str], window_rows: int = WINDOW_ROWS) -> Iterator[np.ndarray]:
        """Yield the vectors of one window of texts at a time, in order."""
        pad_id = special_ids(self.tokenizer).pad
        for window in windowed(texts, len, window_rows):
            features = encoding.sequences_of(self.tokenizer, window, self.max_length)
            yield encoding.run(self.encoder, features, pad_id, self.bf16, self._pool, self.width)

    def _pool(self, hidden: Tensor, present: Tensor) -> Tensor:
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
    layout = read_layout(Path(directory))
    encoder, tokenizer, bf16 = encoding.load(layout.encoder_dir, machine)
    positions = encoder.config.max_position_embeddings
    if max_length is not None and not 3 <= max_length <= positions:
        raise UserError(f"max_length {max_length}: expected 3 to {positions}, the positions of the encoder")
    return Embedder(
        encoder,
        tokenizer,
        pooling=layout.pooling if pooling is None else pooling,
        normalize=layout.normalize if normalize is None else normalize,
        max_length=max_length or min(layout.max_length or positions, positions),
        bf16=bf16,
    )


def read_layout(directory: Path) -> Layout:
    """Read modules.json and the files that it names, if it exists.

    Raises:
        UserError: one of the files is damaged, or names an unsupported pooling or module.
    """
    path = directory / "modules.json"
    if not path.is_file():
        return Layout(directory)
    modules = {_type_of(module, path): directory / module.get("path", "") for module in _read(path, list)}
    unknown = modules.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown or "Transformer" not in modules:
        raise UserError(f"{path}: {', '.join(sorted(unknown)) or 'no Transformer'}; only pooled encoders are read")
    encoder_dir = modules["Transformer"]
    lengths = directory / "sentence_bert_config.json"
    if not lengths.is_file():
        lengths = encoder_dir / "sentence_bert_config.json"
    max_length = _read(lengths, dict).get("max_seq_length") if lengths.is_file() else None
    return Layout(
        encoder_dir,
        _pooling_of(modules["Pooling"] / "config.json") if "Pooling" in modules else "mean",
        "Normalize" in modules,
        max_length,
    )


def _pooling_of(path: Path) -> Pooling:
    content = _read(path, dict)
    modes = [name.removeprefix("pooling_mode_") for name, value in content.items() if value is True]
    modes = [mode for mode in modes if f"pooling_mode_{mode}" in content]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UserError(f"{path}: pooling {' and '.join(modes) or 'none'}; expected one of {', '.join(_MODES)}")
    return _MODES[modes[0]]


def _type_of(module: Any, path: Path) -> str:
    if not isinstance(module, dict) or not isinstance(module.get("type"), str):
        raise UserError(f"{path}: expected a list of modules, each with a type and a path")
    return module["type"].rpartition(".")[2]


def _read(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: missing, although modules.json names its directory") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, kind):
        raise UserError(f"{path}: expected a JSON {'list' if kind is list else 'object'}")
    return content
