"""The encoder's configuration, with the field names of `transformers`, and the presets."""

from __future__ import annotations

import contextlib
import difflib
from typing import Annotated

from pydantic import Field, model_validator

from model.common.bounds import (
    NUMBER,
    CountOrZero,
    Epsilon,
    FeedForwardWidth,
    Layers,
    Line,
    Positions,
    Rate,
    ShareBelowOne,
    Width,
)
from model.common.config_base import Settings, SettingsError
from model.common.errors import UserError

_MOST_WEIGHTS = 10**11  # 300 times BERT-large


class EncoderConfig(Settings):
    """All options that determine the encoder's computation (Devlin et al. 2019, section 3 and appendix A.2)."""

    vocab_size: Annotated[int, Field(ge=6, le=10_000_000), NUMBER]
    """Number of token ids (rows of the token embedding)."""
    hidden_size: Width
    """Width of the hidden states (H)."""
    num_hidden_layers: Layers
    """Number of layers (L)."""
    num_attention_heads: Layers
    """Attention heads per layer (A); must divide hidden_size."""
    intermediate_size: FeedForwardWidth = 0
    """Width of the feed-forward layer; 0 uses 4 H."""
    hidden_dropout_prob: ShareBelowOne = 0.1
    """Dropout after the embeddings and after each sub-layer."""
    attention_probs_dropout_prob: ShareBelowOne = 0.1
    """Dropout of the attention probabilities."""
    max_position_embeddings: Positions = 512
    """Maximum sequence length, including special tokens."""
    type_vocab_size: Width = 2
    """Number of segments."""
    layer_norm_eps: Epsilon = 1e-12
    """Added to the variance in LayerNorm."""
    initializer_range: Rate = 0.02
    """Standard deviation of the truncated normal distribution of initial weights."""
    pad_token_id: CountOrZero = 0
    """Id of [PAD]."""

    @model_validator(mode="before")
    @classmethod
    def _fill_intermediate_size(cls, values: object) -> object:
        if isinstance(values, dict) and not values.get("intermediate_size") and values.get("hidden_size"):
            with contextlib.suppress(TypeError, ValueError, OverflowError):  # reported for hidden_size itself
                return {**values, "intermediate_size": 4 * int(values["hidden_size"])}
        return values

    @model_validator(mode="after")
    def _heads_divide_width(self) -> EncoderConfig:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        layer = self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)
        embeddings = self.hidden_size * (self.vocab_size + self.max_position_embeddings)
        if (weights := self.num_hidden_layers * layer + embeddings) > _MOST_WEIGHTS:
            raise ValueError(f"an encoder with {weights:,} weights; expected at most {_MOST_WEIGHTS:,}")
        return self


# tiny to medium: Turc et al. 2019 (arXiv:1908.08962); base and large: Devlin et al. 2019, section 3.
PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2},
    "mini": {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4},
    "small": {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8},
    "medium": {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8},
    "base": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
    "large": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16},
}


_FREE_FIELDS = {"hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"}
"""Fields that do not have to agree with the weights of a checkpoint."""


class EncoderShape(Settings):
    """A preset, custom sizes, or a preset with changes; the vocabulary comes from the tokenizer."""

    preset: Line | None = None
    """tiny, mini, small, medium, base or large."""
    hidden_size: Width | None = None
    """Width of the hidden states."""
    num_hidden_layers: Layers | None = None
    """Number of layers."""
    num_attention_heads: Layers | None = None
    """Attention heads per layer."""
    intermediate_size: FeedForwardWidth | None = None
    """Width of the feed-forward layer; 4 times hidden_size by default."""
    max_position_embeddings: Positions | None = None
    """Maximum sequence length; 512 by default."""
    hidden_dropout_prob: ShareBelowOne | None = None
    """Dropout of hidden states; 0.1 by default."""
    attention_probs_dropout_prob: ShareBelowOne | None = None
    """Dropout of attention probabilities; 0.1 by default."""
    initializer_range: Rate | None = None
    """Standard deviation of the initial weights; 0.02 by default, as in BERT."""

    def build(self, vocab_size: int) -> EncoderConfig:
        """Build the configuration for a vocabulary of `vocab_size` ids.

        Raises:
            UserError: the preset is unknown, or the sizes do not fit together.
        """
        return EncoderConfig.parse({"vocab_size": vocab_size, **self._given()}, "encoder shape")

    def applied_to(self, config: EncoderConfig, where: str, source: str) -> EncoderConfig:
        """Return the configuration of the checkpoint `source` with this shape's dropout and initializer_range.

        Raises:
            UserError: this shape has another size than the checkpoint.
        """
        given = self._given()
        for name, value in given.items():
            if name not in _FREE_FIELDS and value != getattr(config, name):
                raise UserError(
                    f"{where}: shape says {name} {value}, but {source} has {getattr(config, name)}; remove `shape`, "
                    "which comes from the checkpoint"
                )
        return config.model_copy(update={name: given[name] for name in _FREE_FIELDS & given.keys()})

    def _given(self) -> dict[str, object]:
        """The fields that the preset or the user sets."""
        if self.preset is not None and self.preset not in PRESETS:
            nearest = difflib.get_close_matches(self.preset, PRESETS, n=1, cutoff=0.0)[0]
            known = ", ".join(PRESETS)
            message = f"preset: unknown encoder preset '{self.preset}'; did you mean '{nearest}'? (known: {known})"
            raise SettingsError((("preset",), message))
        sizes: dict[str, object] = dict(PRESETS[self.preset]) if self.preset else {}
        sizes |= self.model_dump(exclude={"preset"}, exclude_none=True)
        return sizes
