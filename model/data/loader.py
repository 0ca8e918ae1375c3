"""Which samples a step sees: stretches of one length one after another, each with its own epoch plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from model.common.errors import UserError
from model.config.pretraining import PretrainRecipe
from model.data.collator import Counts, Feeder, PretrainBatch
from model.data.phases import Course, Place
from model.data.sampler import EpochPlans, lack_of
from model.data.token_store import TokenStore
from model.data.unpadding import Unpadding
from model.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True)
class StepData:
    """One rank's share of a step."""

    parts: list[PretrainBatch]
    """Batches to accumulate over."""
    counts: Counts
    """Of the whole step, over all ranks."""

    def to(self, device: torch.device) -> StepData:
        """The same on a GPU; the copies go on while it computes what came before."""
        parts = [
            PretrainBatch(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in part))
            for part in self.parts
        ]
        return StepData(parts, self.counts)


class Curriculum:
    """The batches of a run, by step.

    Args:
        recipe: phases, masking and the sentence objective.
        store: the training part of the tokens.
        vocabulary: ids of the special tokens, and what is a word.
        seed: the run's.
        num_dropouts: places of the encoder that drop.
        rank, num_ranks: each step's samples are split evenly, in order, among ranks and then among accumulated parts.
        unpadding: how batches of so many rows of a length leave their padding out.

    Raises:
        UserError: the tokens give no samples.
    """

    def __init__(
        self,
        recipe: PretrainRecipe,
        store: TokenStore,
        vocabulary: Vocabulary,
        seed: int,
        num_dropouts: int,
        rank: int = 0,
        num_ranks: int = 1,
        unpadding: Callable[[int, int], Unpadding | None] = lambda batch_size, length: None,
    ) -> None:
        lack = lack_of(store, recipe.sentence_objective)
        if lack is not None:
            raise UserError(f"{store.directory / store.part}: {lack}")
        self._recipe, self._store, self._vocabulary = recipe, store, vocabulary
        self._seed, self._num_dropouts = seed, num_dropouts
        self._rank, self._num_ranks = rank, num_ranks
        self._unpadding = unpadding
        self.course = Course(recipe)
        self._feeders: dict[int, Feeder] = {}

    def at(self, step: int) -> StepData:
        """This rank's share of `step`."""
        place = self.course.place(step)
        phase, feeder = self._recipe.phases[place.phase], self._feeder(place)
        samples = feeder.samples(place.first, phase.batch_size)
        num_parts = self._recipe.accumulate
        size = phase.batch_size // (self._num_ranks * num_parts)
        parts = []
        for part in range(num_parts):
            begin = (self._rank * num_parts + part) * size
            parts.append(feeder.build(samples.slice(begin, begin + size), place.first + begin, step))
        return StepData(parts, feeder.counts(samples, place.first))

    def _feeder(self, place: Place) -> Feeder:
        if place.stretch not in self._feeders:
            recipe, length = self._recipe, self._recipe.phases[place.stretch].sequence_length
            rows = recipe.phases[place.stretch].batch_size // (self._num_ranks * recipe.accumulate)
            plans = EpochPlans(
                self._store,
                length,
                objective=recipe.sentence_objective,
                short_probability=recipe.short_sequence_probability,
                keys=(self._seed, place.stretch),
            )
            self._feeders = {
                place.stretch: Feeder(
                    plans,
                    self._store,
                    length,
                    self.course.samples_before(place.stretch),
                    recipe.masking,
                    self._vocabulary,
                    self._seed,
                    self._num_dropouts,
                    self._unpadding(rows, length),
                )
            }
        return self._feeders[place.stretch]
