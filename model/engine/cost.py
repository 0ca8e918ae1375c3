"""What a process has cost: CPU time, memory at its peak, energy."""

from __future__ import annotations

import os
import resource
import sys
import time

import torch

from model.common.energy import EnergyMeter
from model.common.memory import shared_bytes

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of getrusage


class Cost:
    """Counts from when it is made; CPU time and memory are the process's since its start (its fork)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._energy = EnergyMeter(device)
        self._started, self._cpu_started = time.monotonic(), time.process_time()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def so_far(self) -> dict[str, float]:
        """cpu_seconds, peak_memory_bytes, shared_memory_bytes (of those now), peak_device_memory_bytes on a GPU,
        energy_joules where a device tells.

        A CPU's counter is of the whole package: the process is charged as much of it as it had of the cores' time.
        """
        cpu_seconds = time.process_time()
        found = {
            "cpu_seconds": cpu_seconds,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT,
            "shared_memory_bytes": shared_bytes(),
        }
        if self._device.type == "cuda":
            found["peak_device_memory_bytes"] = torch.cuda.max_memory_allocated(self._device)
        joules = self._energy.joules()
        if joules is not None and self._device.type == "cpu":
            available = (time.monotonic() - self._started) * (os.cpu_count() or 1)
            joules *= min(1.0, (cpu_seconds - self._cpu_started) / max(available, 1e-9))
        if joules is not None:
            found["energy_joules"] = joules
        return found
