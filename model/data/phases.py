"""The phase, first sample and learning rate of every training step.

With `finish_within_seconds` the lengths of the phases are not known in advance: a phase ends when its share of the time
is used up. The lengths are part of a checkpoint, so that the data order of earlier steps does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from model.config.pretraining import Phase, PretrainRecipe


@dataclass(frozen=True)
class PhasePosition:
    """Position of a step in the phases of a run."""

    phase: int
    """Index of the phase."""
    first_phase: int
    """Index of the first of the consecutive phases with this sequence length; they share one order of samples."""
    first_sample: int
    """Number of the step's first sample, counted from `first_phase`."""


class PhaseSchedule:
    """The phases of `recipe` by step."""

    def __init__(self, recipe: PretrainRecipe) -> None:
        self._recipe = recipe
        self.lengths = [phase.num_steps for phase in recipe.phases]
        """Steps of each phase; an upper limit for a phase that has not ended."""
        tokens = [phase.num_steps * phase.batch_size * phase.sequence_length for phase in recipe.phases]
        self._shares = [done / sum(tokens) for done in accumulate(tokens)]

    @property
    def num_steps(self) -> int:
        """Steps of the whole run, as far as known."""
        return sum(self.lengths)

    def fit(self, step: int, seconds: float) -> None:
        """End the phases whose share of the time budget is used up, given the `seconds` that passed before `step`."""
        budget = self._recipe.finish_within_seconds
        if budget is None:
            return
        before = 0
        for index, share in enumerate(self._shares):
            taken = max(0, step - before)
            if seconds >= share * budget and taken < self.lengths[index]:
                self.lengths[index] = taken
            before += self.lengths[index]

    def position(self, step: int) -> PhasePosition:
        """Position of `step`."""
        first_phase, first = 0, 0
        for index, (phase, length) in enumerate(zip(self._recipe.phases, self.lengths)):
            if phase.sequence_length != self._recipe.phases[first_phase].sequence_length:
                first_phase, first = index, 0
            if step < length:
                return PhasePosition(index, first_phase, first + step * phase.batch_size)
            step -= length
            first += length * phase.batch_size
        raise AssertionError("a step beyond the last phase")

    def phase(self, step: int) -> Phase:
        """The phase of `step`."""
        return self._recipe.phases[self.position(step).phase]

    def samples_before(self, phase: int) -> int:
        """Samples of all phases before number `phase`."""
        return sum(length * row.batch_size for length, row in zip(self.lengths[:phase], self._recipe.phases))

    def restarts(self, step: int) -> bool:
        """Check whether the optimizer and the learning-rate schedule restart at `step`."""
        return step > 0 and any(step == steps.start for steps in self._recipe.schedules)

    def learning_rate(self, step: int, seconds: float) -> float:
        """Learning rate of `step`, given the `seconds` that passed before it."""
        recipe = self._recipe
        steps = next(steps for steps in recipe.schedules if step in steps)
        at: float = step - steps.start
        if recipe.finish_within_seconds is not None and at >= recipe.warmup_steps:
            at = max(at, min(1.0, seconds / recipe.finish_within_seconds) * len(steps))
        return self.phase(step).learning_rate * recipe.schedule.factor(at, len(steps), recipe.warmup_steps)
