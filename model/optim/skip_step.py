"""Which steps are taken: a gradient that is no number, or that leaps out of its run's norms, is passed over.

Everything is decided on the device, so that no step waits for the host.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_FEWEST = 20  # steps before a norm can be called a spike: the first ones are large
_MEMORY = 50  # steps that the typical norm looks back over, about


class SkipStep:
    """Judges one gradient norm after another.

    Args:
        spike_factor: norms above this many times the typical one are spikes; None lets all finite ones pass.
        device: where norms lie.
    """

    def __init__(self, spike_factor: float | None, device: torch.device) -> None:
        self._factor = spike_factor
        self._typical = torch.zeros((), dtype=torch.float64, device=device)  # a running mean of the norms taken
        self._taken = torch.zeros((), dtype=torch.float64, device=device)

    def judge(self, norm: Tensor) -> Tensor:
        """() fp32: 1 where the step with this gradient norm, before clipping, is to be passed over, else 0."""
        good = norm.isfinite()
        if self._factor is not None:
            good = good & ((self._taken < _FEWEST) | (norm <= self._factor * self._typical))
        share = 1 / (self._taken + 1).clamp(max=_MEMORY)
        self._typical = torch.where(good, self._typical + (norm.double() - self._typical) * share, self._typical)
        self._taken = self._taken + good
        return (~good).float()

    def state(self) -> dict[str, float]:
        """For a checkpoint; exact."""
        return {"typical": self._typical.item(), "taken": self._taken.item()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave."""
        self._typical.fill_(state["typical"])
        self._taken.fill_(state["taken"])
