"""Energy use of this machine's devices, read from NVML's counters (GPU) or RAPL's (CPU)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

_RAPL = Path("/sys/class/powercap")


class EnergyMeter:
    """Joules since the meter was created; RAPL counts whole CPU packages, including other processes."""

    def __init__(self, device: torch.device) -> None:
        self._nvml: tuple[Any, Any] | None = None
        self._zones: list[Path] = []
        if device.type == "cuda":
            self._nvml = _nvml_of(device)
        else:
            zones = sorted(_RAPL.glob("intel-rapl:?"))
            self._zones = [zone for zone in zones if _number(zone / "energy_uj") is not None]
        self._last = self._read()
        self._joules = 0.0

    def joules(self) -> float | None:
        """Read the energy; None without a counter. Call this at least hourly, so that no counter wraps around twice."""
        now = self._read()
        if not now:
            return None
        for (before, limit), (after, _) in zip(self._last, now):
            self._joules += after - before if after >= before else after + limit - before
        self._last = now
        return self._joules

    def _read(self) -> list[tuple[float, float]]:
        """Read every counter and its wrap-around value, in joules."""
        if self._nvml is not None:
            library, handle = self._nvml
            return [(library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, 0.0)]
        names = ("energy_uj", "max_energy_range_uj")
        return [tuple((_number(zone / name) or 0.0) / 1e6 for name in names) for zone in self._zones]  # type: ignore[misc]


def _nvml_of(device: torch.device) -> tuple[Any, Any] | None:
    try:
        import pynvml  # of nvidia-ml-py, an optional dependency

        pynvml.nvmlInit()
        # Select by UUID, because NVML numbers all GPUs and torch only the visible ones.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # no library, no driver, or a card without the counter
        return None
    return pynvml, handle


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):  # on many machines only root may read it
        return None
