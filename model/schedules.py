"""Learning-rate schedules: factors of the peak rate, as functions of the step alone."""

from __future__ import annotations


def linear_warmup_decay(step: int, num_steps: int, num_warmup_steps: int) -> float:
    """BERT's schedule: linear from 0 to 1 over the warm-up, then linear to 0 at `num_steps`.

    `step` counts from 0. The decay line starts from 1 at the end of the warm-up, as the paper words it
    (appendix A.2); the released code draws it from step 0, which is lower by num_warmup_steps / num_steps
    there.
    """
    assert num_steps > 0, "a schedule has at least one step"
    if step < num_warmup_steps:
        return (step + 1) / num_warmup_steps
    return max(0.0, (num_steps - step) / max(1, num_steps - num_warmup_steps))


def constant_with_warmup(step: int, num_warmup_steps: int) -> float:
    """Linear from 0 to 1 over the warm-up, then 1."""
    return min(1.0, (step + 1) / num_warmup_steps) if num_warmup_steps else 1.0
