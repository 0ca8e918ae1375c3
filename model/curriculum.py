"""Which samples a step sees: phases one after another, each with its own epoch plans, as a function of the step."""

from __future__ import annotations

from dataclasses import dataclass

from model.errors import UserError
from model.feeding import Batch, Counts, Feeder
from model.plans import EpochPlans, lack_of
from model.pretrain_recipe import Phase, PretrainRecipe
from model.token_store import TokenStore
from model.vocabulary import Vocabulary


@dataclass(frozen=True)
class Place:
    """Where a step lies."""

    phase: int
    """Index of the phase."""
    first: int
    """Number, within the phase, of the first sample of the step."""


@dataclass(frozen=True)
class StepData:
    """One rank's share of a step."""

    parts: list[Batch]
    """Batches to accumulate over."""
    counts: Counts
    """Of the whole step, over all ranks."""


class Curriculum:
    """The batches of a run, by step.

    Args:
        recipe: phases, masking and the sentence objective.
        store: the training part of the tokens.
        vocabulary: ids of the special tokens, and what is a word.
        seed: the run's.
        num_sites: places of the encoder that drop.
        rank, num_ranks: each step's samples are split evenly, in order, among ranks and then among accumulated parts.

    Raises:
        UserError: the tokens give no samples.
    """

    def __init__(
        self,
        recipe: PretrainRecipe,
        store: TokenStore,
        vocabulary: Vocabulary,
        seed: int,
        num_sites: int,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        lack = lack_of(store, recipe.sentence_objective)
        if lack is not None:
            raise UserError(f"{store.directory / store.part}: {lack}")
        self._recipe, self._store, self._vocabulary = recipe, store, vocabulary
        self._seed, self._num_sites = seed, num_sites
        self._rank, self._num_ranks = rank, num_ranks
        self._feeders: dict[int, Feeder] = {}

    def place(self, step: int) -> Place:
        """The phase of `step` and its first sample there."""
        for index, phase in enumerate(self._recipe.phases):
            if step < phase.num_steps:
                return Place(index, step * phase.batch_size)
            step -= phase.num_steps
        raise AssertionError("a step beyond the last phase")

    def phase(self, step: int) -> Phase:
        """The phase of `step`."""
        return self._recipe.phases[self.place(step).phase]

    def at(self, step: int) -> StepData:
        """This rank's share of `step`."""
        place = self.place(step)
        phase, feeder = self._recipe.phases[place.phase], self._feeder(place.phase)
        samples = feeder.samples(place.first, phase.batch_size)
        num_parts = self._recipe.accumulate
        size = phase.batch_size // (self._num_ranks * num_parts)
        parts = []
        for part in range(num_parts):
            begin = (self._rank * num_parts + part) * size
            parts.append(feeder.build(samples.slice(begin, begin + size), place.first + begin, step))
        return StepData(parts, feeder.counts(samples, place.first))

    def _feeder(self, index: int) -> Feeder:
        if index not in self._feeders:
            recipe, phase = self._recipe, self._recipe.phases[index]
            plans = EpochPlans(
                self._store,
                phase.sequence_length,
                objective=recipe.sentence_objective,
                short_probability=recipe.short_sequence_probability,
                keys=(self._seed, index),
            )
            before = sum(earlier.num_steps * earlier.batch_size for earlier in recipe.phases[:index])
            self._feeders = {
                index: Feeder(
                    plans,
                    self._store,
                    phase.sequence_length,
                    before,
                    recipe.masking,
                    self._vocabulary,
                    self._seed,
                    self._num_sites,
                )
            }
        return self._feeders[index]
