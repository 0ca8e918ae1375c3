"""Learning-rate schedules: factors of the peak rate, as functions of the step alone."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from model.common.config_base import Settings


class Schedule(Settings):
    """Decay of the learning rate after the warm-up, over all phases together."""

    kind: Literal["linear", "cosine", "stable", "constant"] = "linear"
    """linear: BERT's, a straight line to the floor. cosine: half a wave to the floor. stable: the peak is held, then
    falls as 1 - sqrt over the last `decay` of the steps (warm-up, stable, decay: Hägele et al. 2024, arXiv:2405.18392).
    constant: the peak is held to the end."""
    decay: float = Field(default=0.2, gt=0, le=1)
    """Share of the steps in which a stable schedule falls."""
    floor: float = Field(default=0.0, ge=0, lt=1)
    """Factor of the peak rate at the end of the decay."""

    def factor(self, step: float, num_steps: int, num_warmup_steps: int) -> float:
        """The factor of the peak rate at `step` of `num_steps`, from 0; no whole number in a run fitted to a time."""
        if step < num_warmup_steps:
            return (step + 1) / num_warmup_steps
        if self.kind == "constant":
            return 1.0
        if self.kind == "linear":
            fall = linear_warmup_decay(step, num_steps, num_warmup_steps)
        elif self.kind == "cosine":
            done = (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)
            fall = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        else:
            length = max(1, min(round(self.decay * num_steps), num_steps - num_warmup_steps))
            done = (step - (num_steps - length)) / length
            fall = 1 - math.sqrt(min(1.0, max(0.0, done)))
        return self.floor + (1 - self.floor) * fall


def linear_warmup_decay(step: float, num_steps: int, num_warmup_steps: int) -> float:
    """BERT's schedule: linear from 0 to 1 over the warm-up, then linear to 0 at `num_steps`.

    `step` counts from 0. The decay line starts from 1 at the end of the warm-up, as the paper words it
    (appendix A.2); the released code draws it from step 0, which is lower by num_warmup_steps / num_steps
    there.
    """
    assert num_steps > 0, "a schedule has at least one step"
    if step < num_warmup_steps:
        return (step + 1) / num_warmup_steps
    return max(0.0, (num_steps - step) / max(1, num_steps - num_warmup_steps))
