"""The parameters of promotion: when a new encoder becomes the champion."""

from __future__ import annotations

from pydantic import Field

from model.common.config_base import Settings


class PromotionSettings(Settings):
    """When a new encoder becomes the champion, and what registered models are called."""

    model: str = Field(default="cloze", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    """How the names of registered models begin: MODEL-encoder, and MODEL-TASK for each fine-tuned model."""
    margin: float = Field(default=1.0, ge=0, le=100)
    """Points by which the average may be lower at worst; 0 lets only those pass that are shown to be better."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Of the one-sided limits: how sure it has to be that the average is not lower, and that a task has fallen."""
    must_not_fall: tuple[str, ...] = ()
    """Tasks that must not be significantly worse than the champion's, whatever the average says."""
    may_be_degenerate: tuple[str, ...] = ("wnli",)
    """Tasks on which one answer to every row is no fault: WNLI's dev rows reward nothing else, and the paper leaves
    it out."""
    licence: str = ""
    """The licence that the model card states, as the hub spells it (apache-2.0); empty states none (`other`)."""
    cost_per_hour: float = Field(default=0.0, ge=0)
    """Price of an hour of the machine, for the card; 0 tells no price."""
