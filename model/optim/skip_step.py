"""Step skipping: steps with a non-finite or unusually large gradient are skipped.

The decision is made on the device, so that no step waits for the host.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_FEWEST = 20  # steps before a norm can be called a spike: the first ones are large
_MEMORY = 50  # steps that the typical norm looks back over, about


class SkipStep:
    """Decides for each gradient norm whether the step is skipped.

    Args:
        spike_factor: norms above this multiple of the typical norm are spikes; None accepts all finite norms.
        device: device of the norms.
    """

    def __init__(self, spike_factor: float | None, device: torch.device) -> None:
        self._factor = spike_factor
        self._typical = torch.zeros((), dtype=torch.float64, device=device)  # a running mean of the norms taken
        self._taken = torch.zeros((), dtype=torch.float64, device=device)

    def judge(self, norm: Tensor) -> Tensor:
        """() fp32: 1 if the step with this gradient norm (before clipping) has to be skipped, else 0."""
        good = norm.isfinite()
        if self._factor is not None:
            good = good & ((self._taken < _FEWEST) | (norm <= self._factor * self._typical))
        share = 1 / (self._taken + 1).clamp(max=_MEMORY)
        self._typical = torch.where(good, self._typical + (norm.double() - self._typical) * share, self._typical)
        self._taken = self._taken + good
        return (~good).float()

    def state(self) -> dict[str, float]:
        """State for a checkpoint (exact)."""
        return {"typical": self._typical.item(), "taken": self._taken.item()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore the result of `state`."""
        self._typical.fill_(state["typical"])
        self._taken.fill_(state["taken"])
