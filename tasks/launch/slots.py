"""How many jobs run at a time: a slot per GPU, or per core that this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def num_cores() -> int:
    """Cores this process may use (a container or taskset may give fewer than the machine has)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> list[str]:
    """The GPUs that jobs may use, as CUDA_VISIBLE_DEVICES names them; found without starting CUDA in this process."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device.strip()]
    devices = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index, _ in enumerate(devices.iterdir())] if devices.is_dir() else []


def slots(num_workers: int, accelerator: str) -> tuple[int, list[str] | None]:
    """Number of slots, and the GPU of each (None without GPUs). `num_workers` 0: one per GPU or core."""
    found = [] if accelerator == "cpu" else gpus()
    if found:
        count = num_workers or len(found)
        return count, [found[slot % len(found)] for slot in range(count)]
    return num_workers or num_cores(), None
