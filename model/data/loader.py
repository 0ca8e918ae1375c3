"""The loader of pre-training: the batches of each step, as a function of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch

from model.common.errors import UserError
from model.config.pretraining import PretrainRecipe, SampleKind
from model.data.collator import Collator, Counts, Targets
from model.data.phases import PhasePosition, PhaseSchedule
from model.data.sampler import EpochSampler, unusable_reason
from model.data.token_store import TokenStore
from model.data.unpadding import Unpadding
from model.tokenizer.wordpiece import Vocabulary


class Metric(NamedTuple):
    """A sum that a training module returns, and its denominator."""

    name: str
    per: Literal["prediction", "sequence", "step"]
    """The mean is the sum divided by the number of these."""
    weight: float
    """Weight of the mean in the loss; 0 for metrics that are only reported."""


class StepData(NamedTuple):
    """The share of one optimizer step that one rank computes."""

    batches: Sequence[Any]
    """Batches to accumulate gradients over; each has a method `to(device)`."""
    weights: Sequence[Sequence[float]]
    """For each batch, the weight of each of the module's loss sums. The strategy averages gradients over ranks, so that
    a weight of num_ranks / (global count) gives the mean over the whole batch."""
    counts: Counts
    """Counts of the whole step, over all ranks."""

    def to(self, device: torch.device) -> StepData:
        """The same data on `device`; on a GPU the copies overlap with its work."""
        return self if device.type == "cpu" else self._replace(batches=[batch.to(device) for batch in self.batches])


class DataNeeds(Protocol):
    """The data that a pre-training objective needs (see `model.objectives.objective.Objective`)."""

    samples: SampleKind
    metrics: tuple[Metric, ...]
    targets: type[Targets]


class PretrainLoader:
    """The batches of a run by step.

    Args:
        store: the training part of the tokens.
        num_dropouts: dropout layers of the encoder.
        rank, num_ranks: each step's samples are split evenly, in order, among ranks and then among accumulated parts.
        unpadding: (rows, length) to the way in which padding is left out.

    Raises:
        UserError: the token store has no usable samples.
    """

    def __init__(
        self,
        recipe: PretrainRecipe,
        store: TokenStore,
        vocabulary: Vocabulary,
        seed: int,
        num_dropouts: int,
        objective: DataNeeds,
        rank: int = 0,
        num_ranks: int = 1,
        unpadding: Callable[[int, int], Unpadding | None] = lambda batch_size, length: None,
    ) -> None:
        reason = unusable_reason(store, objective.samples)
        if reason is not None:
            raise UserError(f"{store.directory / store.part}: {reason}")
        self._recipe, self._objective, self._seed = recipe, objective, seed
        self._rank, self._num_ranks, self._unpadding = rank, num_ranks, unpadding
        short = recipe.short_sequence_probability
        self._make_sampler = partial(EpochSampler, store, objective=objective.samples, short_probability=short)
        self._make_collator = partial(
            Collator, vocabulary=vocabulary, masking=recipe.masking, seed=seed, num_dropouts=num_dropouts
        )
        self.phase_schedule = PhaseSchedule(recipe)
        self._collators: dict[int, Collator] = {}

    def at(self, step: int) -> StepData:
        """The batches of `step` on this rank."""
        position = self.phase_schedule.position(step)
        phase, collator = self._recipe.phases[position.phase], self._collator(position)
        samples = collator.sampler.samples(position.first_sample, phase.batch_size)
        num_parts = self._recipe.accumulate
        size = phase.batch_size // (self._num_ranks * num_parts)
        parts = []
        for part in range(num_parts):
            begin = (self._rank * num_parts + part) * size
            parts.append(collator.build(samples[begin : begin + size], position.first_sample + begin, step))
        counts = collator.counts(samples, position.first_sample)
        numbers = {"prediction": counts.num_predictions, "sequence": counts.num_sequences}
        weights = [metric.weight * self._num_ranks / numbers[metric.per] for metric in self._objective.metrics]
        return StepData(parts, [weights] * num_parts, counts)

    def _collator(self, position: PhasePosition) -> Collator:
        number = position.first_phase
        if number not in self._collators:
            phase = self._recipe.phases[number]
            rows = phase.batch_size // (self._num_ranks * self._recipe.accumulate)
            collator = self._make_collator(
                self._make_sampler(phase.sequence_length, keys=(self._seed, number)),
                first_sample=self.phase_schedule.samples_before(number),
                unpadding=self._unpadding(rows, phase.sequence_length),
                targets=self._objective.targets,
            )
            self._collators = {number: collator}
        return self._collators[number]
