"""Learning-rate schedules: factors of the peak rate, as functions of the step."""

from __future__ import annotations

import math
from typing import Literal

from model.common.bounds import ShareAboveZero, ShareBelowOne
from model.common.config_base import Settings


class Schedule(Settings):
    """Learning-rate decay after the warm-up, over all phases."""

    kind: Literal["linear", "cosine", "stable", "constant"] = "linear"
    """linear: straight to the floor, as in BERT. cosine: half a cosine wave to the floor. stable: constant, then 1 -
    sqrt over the last share `decay` of the steps (warmup-stable-decay, Hägele et al. 2024, arXiv:2405.18392).
    constant: the peak rate to the end."""
    decay: ShareAboveZero = 0.2
    """Share of steps over which a stable schedule decays."""
    floor: ShareBelowOne = 0.0
    """Final rate as a factor of the peak rate."""

    def factor(self, step: float, num_steps: int, num_warmup_steps: int) -> float:
        """Compute the factor of the peak rate at `step` of `num_steps`, from 0; fractional in timed runs."""
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

    `step` counts from 0. The decay starts from 1 at the end of the warm-up, as the paper describes (appendix A.2);
    the released code decays from step 0, which is lower by num_warmup_steps / num_steps at the end of the
    warm-up.
    """
    assert num_steps > 0, "a schedule has at least one step"
    if step < num_warmup_steps:
        return (step + 1) / num_warmup_steps
    return max(0.0, (num_steps - step) / max(1, num_steps - num_warmup_steps))
