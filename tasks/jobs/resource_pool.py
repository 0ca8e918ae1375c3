"""Packing jobs onto cores, memory and GPUs: a job starts when what it needs fits beside what runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from model.config.hardware import Machine
from tasks.jobs.resources import available_bytes, free_gpu_bytes, gpus, num_cores

SHARE = 0.8  # of what is available; the rest is for this process, the servers and errors of the estimate
DEVICE_CONTEXT_BYTES = 600 * 2**20  # of one process on a GPU: CUDA's context and kernels, before any tensor


@dataclass(frozen=True)
class Need:
    """What one job takes at most: memory, and memory of a GPU without CUDA's own context."""

    memory_bytes: int
    device_bytes: int = 0


@dataclass(frozen=True)
class Lease:
    """What a running job holds; `device` as CUDA_VISIBLE_DEVICES names it."""

    need: Need
    device: str | None = None


@dataclass
class Room:
    """What all jobs may take together. A job that needs more than there is runs when nothing else does."""

    num_jobs: int
    """Jobs at a time."""
    memory_bytes: int
    """Of all jobs."""
    devices: Mapping[str, int | None] = field(default_factory=dict)
    """GPU → its memory for jobs, or None where it is not known; empty: jobs run on the CPU."""
    jobs_per_device: int | Literal["auto"] = "auto"
    """Jobs on one GPU; auto: as many as fit its memory, one where that is not known."""
    leases: dict[str, Lease] = field(default_factory=dict)
    """What runs, by name."""

    def take(self, name: str, need: Need, alone: bool = False) -> Lease | None:
        """Let a job in, or not now. `alone`: only when nothing else runs."""
        if len(self.leases) >= self.num_jobs or (alone and self.leases):
            return None
        used = sum(lease.need.memory_bytes for lease in self.leases.values())
        if self.leases and used + need.memory_bytes > self.memory_bytes:
            return None
        device = self._device(need) if self.devices else None
        if self.devices and device is None:
            return None
        self.leases[name] = Lease(need, device)
        return self.leases[name]

    def give_back(self, name: str) -> None:
        """A job has ended."""
        del self.leases[name]

    def _device(self, need: Need) -> str | None:
        """The GPU with the fewest jobs that has room for one more."""
        on = {name: [lease.need for lease in self.leases.values() if lease.device == name] for name in self.devices}
        fitting = [name for name, memory in self.devices.items() if self._fits(need, on[name], memory)]
        return min(fitting, key=lambda name: len(on[name]), default=None)

    def _fits(self, need: Need, others: list[Need], memory: int | None) -> bool:
        if not others:
            return True
        if self.jobs_per_device != "auto":
            return len(others) < self.jobs_per_device
        if memory is None:
            return False
        return sum(one.device_bytes + DEVICE_CONTEXT_BYTES for one in [*others, need]) <= memory


def find_room(machine: Machine, num_workers: int, memory_bytes: int, jobs_per_device: int | Literal["auto"]) -> Room:
    """What this machine has for jobs now; 0 for what it may find out itself."""
    found = [] if machine.accelerator == "cpu" else gpus()
    free = {name: free_gpu_bytes(name) for name in found}
    devices = {name: None if room is None else int(SHARE * room) for name, room in free.items()}
    cores = max(1, num_cores() // (machine.num_threads or num_cores()))
    return Room(
        num_jobs=num_workers or cores,
        memory_bytes=memory_bytes or int(SHARE * available_bytes()),
        devices=devices,
        jobs_per_device=jobs_per_device,
    )
