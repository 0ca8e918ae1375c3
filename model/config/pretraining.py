"""Pre-training options; the defaults are those of Devlin et al. 2019 (section 3.1, appendix A.2)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from model.common.bounds import (
    MOST_ELEMENTS,
    NUMBER,
    Count,
    CountOrZero,
    Epsilon,
    FilePath,
    NotNegative,
    Positive,
    Rate,
    Seed,
    SequenceLength,
    Share,
    ShareBelowOne,
    Size,
    Tokens,
)
from model.common.config_base import Settings
from model.common.errors import UserError
from model.common.files import load_json
from model.config.encoder import EncoderConfig, EncoderShape
from model.config.hardware import HardwareOptions
from model.config.schedules import Schedule

SampleKind = Literal["next_sentence", "sentence_order", "none"]
"""Samples for next-sentence prediction, for sentence-order prediction, or packed rows without pairs."""
SentenceObjective = Literal["next_sentence", "sentence_order", "pair_without_loss", "none"]
"""Keys of `model.objectives.OBJECTIVES`."""


class Phase(Settings):
    """A number of steps with the same settings. Weights, optimizer and schedule continue from phase to phase. The order
    of the text continues, too, if the sequence length stays the same."""

    sequence_length: SequenceLength
    """Tokens per sequence, including special tokens."""
    batch_size: Size
    """Sequences per step, over all ranks and accumulated parts."""
    num_steps: Count
    """Optimizer steps; num_tokens may be given instead."""
    num_tokens: Tokens | None = None
    """Tokens to process, including padding; sets num_steps."""
    learning_rate: Rate
    """Peak learning rate, scaled by the schedule."""
    restart: bool = False
    """Restart the optimizer and the schedule (including the warm-up) at this phase; the previous schedule ends
    there."""

    @model_validator(mode="before")
    @classmethod
    def _steps_from_tokens(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("num_tokens") and "num_steps" not in values:
            num_steps = 1  # if one of the sizes is none: its validation reports that
            with contextlib.suppress(KeyError, TypeError, ValueError, ArithmeticError):
                tokens = float(values["batch_size"]) * float(values["sequence_length"])
                num_steps = max(1, int(-(-float(values["num_tokens"]) // tokens)))
            return {**values, "num_steps": num_steps}
        return values


class Masking(Settings):
    """Masked language modeling (appendix A.1)."""

    rate: Annotated[float, Field(gt=0, lt=1), NUMBER] = 0.15
    """Share of tokens to predict, relative to a length that includes special tokens."""
    mask: Share = 0.8
    """Share of chosen tokens that become [MASK]."""
    random: Share = 0.1
    """Share of chosen tokens that become a random token; the rest is unchanged."""
    max_predictions: Size | None = None
    """Maximum number of predictions per sequence (released code: 20 at length 128); None for no limit."""
    whole_words: bool = False
    """Mask whole words, as in BERT's later release. Words that exceed the number of predictions are skipped. Validation
    always masks single tokens, so that runs are comparable."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Masking:
        if self.mask + self.random > 1 + 1e-9:
            raise ValueError(f"mask {self.mask} and random {self.random} add up to more than 1")
        return self


class ProbeSettings(Settings):
    """Probes of the encoder during training: a ridge regression on frozen features, with scores in the metrics log."""

    benchmarks: list[FilePath] = []
    """Benchmarks with a label for a text or a pair, by name (sst2, rte, ...) or custom tasks by file
    (tasks/letters.yaml); an empty list for no probes."""
    every_steps: Count = 10_000
    """Steps between probes; one more probe follows the last step."""
    max_rows: Annotated[int, Field(ge=10, le=10**9), NUMBER] = 1_000
    """Number of training rows, and of dev rows, that a probe reads."""


class LossBound(Settings):
    """A loss that a run must reach to continue."""

    step: Count
    """Step of the check: the end of the first log interval at or after it."""
    mlm_loss: Positive
    """Maximum masked-language-modeling loss in training (mean over the interval)."""


# Settings that do not influence the weights are excluded from digests.
KEEPING = {"checkpoint_every_steps", "checkpoints_kept", "pause_after_seconds", "probes"}


class PretrainRecipe(Settings):
    """All pre-training options except the encoder's shape and the text."""

    phases: list[Phase] = Field(
        max_length=MOST_ELEMENTS,
        default=[
            # 1,000,000 steps of 256 sequences, nine tenths at length 128 (appendix A.2): 42.6 billion tokens. The
            # paper's "131,072 tokens a batch, 40 epochs" counts every step at length 512.
            Phase(sequence_length=128, batch_size=256, num_steps=900_000, learning_rate=1e-4),
            Phase(sequence_length=512, batch_size=256, num_steps=100_000, learning_rate=1e-4),
        ],
    )
    """The phases in order; an empty list leaves the encoder as initialized (the baseline from scratch)."""
    start: Literal["random", "neighbors"] = "random"
    """Initial weights: random as in BERT, or with first-layer heads that attend to neighboring tokens, which lets small
    encoders skip the long initial plateau of the loss."""
    warmup_steps: CountOrZero = 10_000
    """Number of linear warm-up steps before the schedule's decay."""
    schedule: Schedule = Schedule()
    """Learning-rate schedule after the warm-up."""
    optimizer: Literal["bert_adamw", "adamw", "lamb", "muon"] = "bert_adamw"
    """bert_adamw (no bias correction, as released), adamw (torch's), lamb, or muon (for the matrices inside the layers,
    with adamw for the rest)."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay; biases and LayerNorm are exempt."""
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)
    """Decay rates of Adam's two moments."""
    eps: Epsilon = 1e-6
    """Added to the root of Adam's second moment."""
    max_grad_norm: Positive = 1.0
    """Maximum gradient norm; larger gradients are scaled down."""
    skip_spikes_above: Annotated[float, Field(gt=1, le=1e9), NUMBER] | None = None
    """Skip steps whose gradient norm exceeds this multiple of the typical norm; None skips only steps with a non-finite
    gradient."""
    masking: Masking = Masking()
    """Masked language modeling."""
    short_sequence_probability: Share = 0.1
    """Share of pairs with a shorter random target length (at least 2 tokens); packed rows are always full."""
    sentence_objective: SentenceObjective = "next_sentence"
    """Second objective: next_sentence (predict if B follows A or is from another document), sentence_order
    (predict if two neighboring spans are swapped; ALBERT, arXiv:1909.11942), pair_without_loss (the pairs of
    next_sentence, but only masked tokens are predicted; "No NSP" in the paper's Table 5), or none, which packs each
    sequence with segments of documents that do not attend to each other."""
    accumulate: Size = 1
    """Number of gradient accumulation steps per batch, to save memory; results do not change."""
    checkpoint_every_steps: Count = 10_000
    """Steps between checkpoints."""
    checkpoints_kept: Count = 2
    """Number of checkpoints to keep on disk, newest first."""
    log_every_steps: Count = 100
    """Steps between entries of the metrics log and the curve."""
    validate_every_steps: Count = 10_000
    """Steps between validations on held-out documents; one more validation follows the last step."""
    validation_batches: CountOrZero = 20
    """Batches per validation; 0 disables validation."""
    give_up_above: list[LossBound] = Field([], max_length=MOST_ELEMENTS)
    """Stop a run that has not reached these losses. A run whose loss after the warm-up is one nat above that of a
    uniform guess is always stopped."""
    finish_within_seconds: Positive | None = None
    """Time budget of training. The schedule and the phases (in proportion to their tokens) are fitted to it, and
    num_steps is an upper limit. Such a run depends on the clock and is not bit-for-bit reproducible."""
    probes: ProbeSettings = ProbeSettings()
    """Benchmarks to evaluate during training; they do not influence it."""
    pause_after_seconds: Positive | None = None
    """Save a checkpoint and stop after this time, to resume later; None trains to the end."""

    @property
    def num_steps(self) -> int:
        """Number of steps of all phases."""
        return sum(phase.num_steps for phase in self.phases)

    @property
    def schedules(self) -> list[range]:
        """Number of steps of each schedule: from a phase that restarts (or the first) to the next such phase."""
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
                raise ValueError(f"phases.{index}.batch_size {phase.batch_size} is not a multiple of {self.accumulate}")
        if self.phases:
            shortest = min(len(steps) for steps in self.schedules)
            if self.warmup_steps >= shortest:
                raise ValueError(f"warmup_steps {self.warmup_steps} must be less than num_steps {shortest}")
        if self.finish_within_seconds is not None and len(self.schedules) > 1:
            raise ValueError("finish_within_seconds requires a single schedule; remove restart from the phases")
        return self


class StartCheckpoint(Settings):
    """The checkpoint that a run continues from, in the `transformers` layout."""

    name: str
    """As params.yaml names it."""
    directory: Path
    digest: str
    """Digest of its weights, configuration and vocabulary."""
    config: EncoderConfig
    """Its configuration, with the vocabulary of the text and the dropout of the run."""


class PretrainRun(Settings):
    """One pre-training job: the input of a pre-training process, in RUN.json."""

    name: str
    """The encoder's name."""
    system: str = ""
    """Name of the system on the leaderboard: that of the encoder without its seed, if it has several."""
    digest: str
    """Digest of the job's inputs, recipe, seed and code version; copied into the result."""
    tokens_dir: Path
    tokenizer_dir: Path
    data_dir: Path | None = None
    """The data folder, which contains glue/, for probes."""
    run_dir: Path
    """Directory for the journal, the status, checkpoints, the encoder and the result."""
    shape: EncoderShape
    """Not used with `start`, which has a configuration."""
    start: StartCheckpoint | None = None
    """The checkpoint to continue from; None starts from initial weights."""
    recipe: PretrainRecipe = PretrainRecipe()
    seed: Seed = 1
    """Seed of the initial weights, the sample order, the masks and the dropout."""
    machine: HardwareOptions = HardwareOptions()
    attempt: CountOrZero = 0
    """The attempt that may write to run_dir (model.common.ownership); 0 is not checked."""

    def encoder_config(self, vocab_size: int) -> EncoderConfig:
        """Return the configuration of the encoder for a vocabulary of `vocab_size` ids."""
        return self.shape.build(vocab_size) if self.start is None else self.start.config


def check_phases(recipe: PretrainRecipe, machine: HardwareOptions, config: EncoderConfig, where: str = "") -> None:
    """Check that the phases and the kernel fit the encoder and the machine.

    Args:
        where: start of the message, such as "pretrain.encoders: mini: ".

    Raises:
        UserError: a setting does not fit; the message names it.
    """
    if machine.attention == "flash" and config.attention_probs_dropout_prob:
        raise UserError(
            f"{where}machine.attention: flash does not support attention dropout, but attention_probs_dropout_prob is "
            f"{config.attention_probs_dropout_prob}; set it to 0, or set machine.attention to auto"
        )
    for index, phase in enumerate(recipe.phases):
        name = f"{where}recipe.phases.{index}"
        if phase.sequence_length > config.max_position_embeddings:
            raise UserError(
                f"{name}.sequence_length: {phase.sequence_length} is more than the encoder's "
                f"max_position_embeddings ({config.max_position_embeddings})"
            )
        if phase.batch_size % (machine.world_size * recipe.accumulate):
            raise UserError(
                f"{name}.batch_size: {phase.batch_size} cannot be split among {machine.world_size} ranks "
                f"and {recipe.accumulate} accumulated parts"
            )


def read_run(path: Path) -> PretrainRun:
    """Read RUN.json.

    Raises:
        UserError: the file is missing or invalid.
    """
    return PretrainRun.parse(load_json(path, "; give the path of a RUN.json"), str(path))
