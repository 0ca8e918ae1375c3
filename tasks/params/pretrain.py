"""The section `pretrain` of params.yaml."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from model.common.config_base import Settings
from model.common.errors import UserError
from model.config.encoder import EncoderShape
from model.config.hardware import HardwareOptions
from model.config.pretraining import PretrainRecipe


class EncoderParams(Settings):
    """One encoder to pre-train; each is a row of the leaderboard."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    """Name in tables and directory names."""
    shape: EncoderShape = EncoderShape(preset="base")
    """Encoder size: a preset, or explicit sizes."""
    recipe: dict[str, Any] = {}
    """Settings that override `pretrain.recipe` for this encoder; `phases: []` gives an untrained encoder (zero
    steps)."""
    seed: int | None = Field(None, ge=0)
    """Seed of this encoder; null uses `pretrain.seed`."""


class PretrainParams(Settings):
    """The encoders and how they are trained."""

    seed: int = Field(1, ge=0)
    """Random seed of weight initialization, sample order, masking and dropout."""
    recipe: dict[str, Any] = {}
    """PretrainRecipe settings for all encoders; anything not set uses BERT's original value."""
    encoders: list[EncoderParams] = Field(min_length=1)
    """The encoders; each is one training job."""
    num_parallel: int = Field(1, ge=1)
    """Number of encoders trained at the same time."""
    machine: HardwareOptions = HardwareOptions()
    """Hardware options of each job."""

    @model_validator(mode="after")
    def _check(self) -> PretrainParams:
        names = [encoder.name for encoder in self.encoders]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"params.yaml: pretrain.encoders: two encoders are named '{name}'")
        for encoder in self.encoders:
            self.recipe_of(encoder)
            encoder.shape.build(vocab_size=30_522)  # raises if the sizes are inconsistent
        return self

    def recipe_of(self, encoder: EncoderParams) -> PretrainRecipe:
        """Return the complete recipe of one encoder."""
        return PretrainRecipe.parse({**self.recipe, **encoder.recipe}, f"pretrain ({encoder.name})")
