"""How an encoder is pre-trained: the recipe of Devlin et al. 2019 (section 3.1, appendix A.2), all of it editable."""

from __future__ import annotations

import contextlib
from typing import Literal

from pydantic import Field, model_validator

from model.common.config_base import Settings
from model.config.schedules import Schedule

SentenceObjective = Literal["next_sentence", "sentence_order", "none"]


class Phase(Settings):
    """A row of steps alike. Weights, optimiser and schedule go on from phase to phase, and so does the order of the
    text where the length stays the same: a batch that grows is some rows of one length."""

    sequence_length: int = Field(ge=8)
    """Tokens of a sequence, special ones counted."""
    batch_size: int = Field(ge=1)
    """Sequences of a step, over all ranks and accumulated parts."""
    num_steps: int = Field(ge=1)
    """Optimiser steps; num_tokens may be given in their place."""
    num_tokens: int | None = Field(default=None, ge=1)
    """Tokens to see, padding counted: sets num_steps."""
    learning_rate: float = Field(gt=0)
    """Peak rate; the schedule scales it."""
    restart: bool = False
    """Optimiser and schedule (warm-up included) start anew here; a schedule ends where the next one starts."""

    @model_validator(mode="before")
    @classmethod
    def _steps_from_tokens(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("num_tokens") and "num_steps" not in values:
            with contextlib.suppress(KeyError, TypeError, ZeroDivisionError):  # what is wrong there is said below
                tokens = values["batch_size"] * values["sequence_length"]
                return {**values, "num_steps": -(-values["num_tokens"] // tokens)}
        return values


class Masking(Settings):
    """Masked language modelling (appendix A.1)."""

    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens to predict, special tokens counted in the length."""
    mask: float = Field(default=0.8, ge=0, le=1)
    """Share of the chosen tokens that become [MASK]."""
    random: float = Field(default=0.1, ge=0, le=1)
    """Share that becomes a random token; the rest stays as it is."""
    max_predictions: int | None = Field(default=None, ge=1)
    """Most predictions of a sequence (released code: 20 at length 128); None for no limit."""
    whole_words: bool = False
    """Choose whole words (the later variant of the release). One that does not fit into the number of predictions is
    passed over, so there may be fewer. Validation always masks single tokens, so that runs compare."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Masking:
        if self.mask + self.random > 1 + 1e-9:
            raise ValueError(f"mask {self.mask} and random {self.random} add up to more than 1")
        return self


class ProbeSettings(Settings):
    """Looks at what the encoder knows while it trains: frozen features, a ridge regression, scores in the journal."""

    benchmarks: list[str] = []
    """Benchmarks with a label for a text or a pair, by name (sst2, rte, ...) or own tasks by file (tasks/letters.yaml);
    none for no probes."""
    every_steps: int = Field(default=10_000, ge=1)
    """Steps between probes; one more follows the last step."""
    max_rows: int = Field(default=1_000, ge=10)
    """Training rows, and dev rows, that a probe takes."""


class LossBound(Settings):
    """What a run must have reached, or it is given up."""

    step: int = Field(ge=1)
    """Looked at in the first interval that ends at or after this step."""
    mlm_loss: float = Field(gt=0)
    """The masked-word loss in training (mean of the interval) that must not be exceeded."""


# What decides how a run is kept and shown, never what it learns: part of no digest.
KEEPING = {"checkpoint_every_steps", "checkpoints_kept", "pause_after_seconds", "probes"}


class PretrainRecipe(Settings):
    """All of pre-training but the encoder's shape and the text."""

    phases: list[Phase] = Field(
        default=[
            # 1,000,000 steps of 256 sequences, nine tenths at length 128 (appendix A.2): 42.6 billion tokens. The
            # paper's "131,072 tokens a batch, 40 epochs" counts every step at length 512.
            Phase(sequence_length=128, batch_size=256, num_steps=900_000, learning_rate=1e-4),
            Phase(sequence_length=512, batch_size=256, num_steps=100_000, learning_rate=1e-4),
        ]
    )
    """In order; none at all leaves the encoder as it was initialised (the rival from scratch)."""
    start: Literal["random", "neighbours"] = "random"
    """First weights: random as BERT's, or with heads of the first layer that begin by looking at the tokens beside
    each, which spares small encoders the long plateau at the loss of word frequencies."""
    warmup_steps: int = Field(default=10_000, ge=0)
    """Steps of linear warm-up; then the schedule's fall to the end of the last phase."""
    schedule: Schedule = Schedule()
    """How the rate falls after the warm-up."""
    optimizer: Literal["bert_adamw", "adamw", "lamb", "muon"] = "bert_adamw"
    """bert_adamw (no bias correction, as released), adamw (torch's), lamb, or muon (for the matrices inside the layers,
    with adamw for the rest)."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled; not on biases and LayerNorm."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's two moments."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the root of Adam's second moment."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The gradient is scaled down to this norm."""
    skip_spikes_above: float | None = Field(default=None, gt=1)
    """Steps whose gradient norm is more than this many times the typical one are not taken; None takes all but those
    whose gradient is no number."""
    masking: Masking = Masking()
    """Masked language modelling."""
    short_sequence_probability: float = Field(default=0.1, ge=0, le=1)
    """Share of the pairs with a shorter random target length (at least 2 tokens); packed rows are always full."""
    sentence_objective: SentenceObjective = "next_sentence"
    """What is learnt beside masked tokens: next_sentence (whether B follows A or is of another document),
    sentence_order (ALBERT's, arXiv:1909.11942: whether two neighbours are swapped), or none, where each sequence is
    packed with pieces of documents that do not see each other."""
    accumulate: int = Field(default=1, ge=1)
    """Parts that a step's batch is computed in, for memory; the outcome is the same."""
    checkpoint_every_steps: int = Field(default=10_000, ge=1)
    """Steps between checkpoints."""
    checkpoints_kept: int = Field(default=2, ge=1)
    """Newest checkpoints that stay on disk."""
    log_every_steps: int = Field(default=100, ge=1)
    """Steps between entries of the journal and the curve."""
    validate_every_steps: int = Field(default=10_000, ge=1)
    """Steps between validations on held-out documents; one more follows the last step."""
    validation_batches: int = Field(default=20, ge=0)
    """Batches of a validation; 0 for none."""
    give_up_above: list[LossBound] = []
    """Ends a run as hopeless that has not learnt enough by some step. One whose loss, once warmed up, is a nat above
    that of a uniform guess is ended in any case."""
    finish_within_seconds: float | None = Field(default=None, gt=0)
    """A budget of training time that the schedule and the phases (each with its share of the tokens) are fitted to;
    their steps are then the most that are taken. Such a run depends on the clock: no two are equal to the bit."""
    probes: ProbeSettings = ProbeSettings()
    """Benchmarks to look at while training; nothing of them flows back."""
    pause_after_seconds: float | None = Field(default=None, gt=0)
    """Save and end after this time, to be continued; None to go on to the end."""

    @property
    def num_steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.num_steps for phase in self.phases)

    @property
    def schedules(self) -> list[range]:
        """The steps of each schedule: from a phase that restarts (or the first) to the next such phase."""
        starts, step = [0], 0
        for phase in self.phases:
            if phase.restart and step:
                starts.append(step)
            step += phase.num_steps
        return [range(*bounds) for bounds in zip(starts, [*starts[1:], step])]

    @model_validator(mode="after")
    def _batches_divide(self) -> PretrainRecipe:
        for index, phase in enumerate(self.phases):
            if phase.batch_size % self.accumulate:
                raise ValueError(f"phases.{index}.batch_size {phase.batch_size} is no multiple of {self.accumulate}")
        if self.phases:
            shortest = min(len(steps) for steps in self.schedules)
            if self.warmup_steps >= shortest:
                raise ValueError(f"warmup_steps {self.warmup_steps} leaves nothing of {shortest} steps")
        if self.finish_within_seconds is not None and len(self.schedules) > 1:
            raise ValueError("finish_within_seconds fits one schedule; leave out the phases' restart")
        return self
