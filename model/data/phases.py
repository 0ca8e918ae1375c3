"""The course of a run: the phase of every step, its first sample and its learning rate, as functions of the step.

With `finish_within_seconds` the phases' lengths are not known beforehand: a phase ends when its share of the time is
used up. What has ended is kept (`lengths` is part of a checkpoint), so that earlier steps stay what they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from model.config.pretraining import Phase, PretrainRecipe


@dataclass(frozen=True)
class Place:
    """Where a step lies."""

    phase: int
    """Index of the phase."""
    stretch: int
    """Index of the first of the phases, one after another, of this one's length: they share one order of the text."""
    first: int
    """Number, within the stretch, of the step's first sample."""


class Course:
    """The phases of `recipe`, step by step."""

    def __init__(self, recipe: PretrainRecipe) -> None:
        self._recipe = recipe
        self.lengths = [phase.num_steps for phase in recipe.phases]
        """Steps of each phase; of one that has not ended, the most there may be."""
        tokens = [phase.num_steps * phase.batch_size * phase.sequence_length for phase in recipe.phases]
        self._schedules = recipe.schedules
        self._shares = [done / sum(tokens) for done in accumulate(tokens)]

    @property
    def num_steps(self) -> int:
        """Steps of the whole run, as far as is known."""
        return sum(self.lengths)

    def fit(self, step: int, seconds: float) -> None:
        """With a budget of time: `seconds` have passed before `step`; end the phases whose share is used up."""
        budget = self._recipe.finish_within_seconds
        if budget is None:
            return
        before = 0
        for index, share in enumerate(self._shares):
            taken = max(0, step - before)
            if seconds >= share * budget and taken < self.lengths[index]:
                self.lengths[index] = taken
            before += self.lengths[index]

    def place(self, step: int) -> Place:
        """Where `step` lies."""
        stretch, first = 0, 0
        for index, (phase, length) in enumerate(zip(self._recipe.phases, self.lengths)):
            if phase.sequence_length != self._recipe.phases[stretch].sequence_length:
                stretch, first = index, 0
            if step < length:
                return Place(index, stretch, first + step * phase.batch_size)
            step -= length
            first += length * phase.batch_size
        raise AssertionError("a step beyond the last phase")

    def phase(self, step: int) -> Phase:
        """The phase of `step`."""
        return self._recipe.phases[self.place(step).phase]

    def samples_before(self, phase: int) -> int:
        """Samples of all phases before number `phase`."""
        return sum(length * row.batch_size for length, row in zip(self.lengths[:phase], self._recipe.phases))

    def restarts(self, step: int) -> bool:
        """Whether optimiser and schedule start anew at `step`."""
        return step > 0 and any(step == steps.start for steps in self._schedules)

    def learning_rate(self, step: int, seconds: float) -> float:
        """The rate of `step`, before which `seconds` have passed."""
        recipe = self._recipe
        steps = next(steps for steps in self._schedules if step in steps)
        at: float = step - steps.start
        if recipe.finish_within_seconds is not None and at >= recipe.warmup_steps:
            at = max(at, min(1.0, seconds / recipe.finish_within_seconds) * len(steps))
        return self.phase(step).learning_rate * recipe.schedule.factor(at, len(steps), recipe.warmup_steps)
