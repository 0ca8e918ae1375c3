"""Cores, memory and GPUs of this machine, and the pool of them that concurrent jobs share.

Resources are found without initializing CUDA in this process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from model.config.hardware import HardwareOptions

SHARE = 0.8  # of available memory; the rest is for this process, the servers and estimation errors
DEVICE_CONTEXT_BYTES = 600 * 2**20  # CUDA context and kernels of one process
_CGROUP = Path("/sys/fs/cgroup")


def num_cores(cgroup: Path = _CGROUP) -> int:
    """Number of cores this process may use; a container or taskset may allow fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return cores


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Available memory, of the machine or within the container's limit."""
    import psutil

    available = int(psutil.virtual_memory().available)
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = int((cgroup / limit_name).read_text())
            used = int((cgroup / used_name).read_text())
            stat = (cgroup / limit_name).with_name("memory.stat").read_text().splitlines()
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
        cache = sum(int(line.split()[1]) for line in stat if line.split()[0] == cache_name)  # freed on demand
        available = min(available, max(0, limit - used + cache))
    return available


def gpus() -> list[str]:
    """GPUs that jobs may use, in the notation of CUDA_VISIBLE_DEVICES."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device.strip()]
    devices = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index, _ in enumerate(devices.iterdir())] if devices.is_dir() else []


def free_gpu_bytes(device: str) -> int | None:
    """Free memory of a GPU; None if `nvidia-smi` does not report it."""
    command = ["nvidia-smi", f"--id={device}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return int(done.stdout.strip()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def out_of_memory_kills() -> int:
    """Number of processes that the kernel has killed because memory ran out; 0 if it does not report this."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@dataclass(frozen=True)
class MemoryEstimate:
    """Upper bound of a job's memory; `device_bytes` excludes the CUDA context."""

    memory_bytes: int
    device_bytes: int = 0


@dataclass(frozen=True)
class Allocation:
    """Resources of a running job; `device` in the notation of CUDA_VISIBLE_DEVICES."""

    memory: MemoryEstimate
    device: str | None = None


class Resources(Protocol):
    """Resources that concurrent jobs share."""

    @property
    def can_grow(self) -> bool:
        """True if resources come and go by themselves, so that a job may fit although no other has ended."""
        ...

    @property
    def num_jobs(self) -> int:
        """Maximum number of concurrent jobs."""
        ...

    @property
    def allocations(self) -> Mapping[str, Allocation]:
        """Running jobs by name."""
        ...

    def allocate(self, name: str, memory: MemoryEstimate, alone: bool = False) -> Allocation | None:
        """Reserve resources for a job (`alone`: only where no other runs), or return None if they are not free."""
        ...

    def release(self, name: str) -> None:
        """Free the resources of a job that has ended."""
        ...


@dataclass
class ResourcePool:
    """Resources of one machine. A job that exceeds the total runs when no other job does."""

    can_grow: ClassVar[bool] = False
    num_jobs: int
    """Maximum number of concurrent jobs."""
    memory_bytes: int
    devices: Mapping[str, int | None] = field(default_factory=dict)
    """GPU → memory for jobs, or None if unknown. Empty: jobs run on the CPU."""
    jobs_per_device: int | Literal["auto"] = "auto"
    """Concurrent jobs per GPU; `auto`: as many as fit into its memory, one if that is unknown."""
    allocations: dict[str, Allocation] = field(default_factory=dict)
    """Running jobs by name."""

    def allocate(self, name: str, memory: MemoryEstimate, alone: bool = False) -> Allocation | None:
        """Reserve resources for a job (`alone`: only if no other runs), or return None if they are not free."""
        if len(self.allocations) >= self.num_jobs or (alone and self.allocations):
            return None
        used = sum(one.memory.memory_bytes for one in self.allocations.values())
        if self.allocations and used + memory.memory_bytes > self.memory_bytes:
            return None
        device = self._device(memory) if self.devices else None
        if self.devices and device is None:
            return None
        self.allocations[name] = Allocation(memory, device)
        return self.allocations[name]

    def release(self, name: str) -> None:
        del self.allocations[name]

    def _device(self, memory: MemoryEstimate) -> str | None:
        running = {
            name: [one.memory for one in self.allocations.values() if one.device == name] for name in self.devices
        }
        fitting = [name for name, total in self.devices.items() if self._fits(memory, running[name], total)]
        return min(fitting, key=lambda name: len(running[name]), default=None)

    def _fits(self, memory: MemoryEstimate, others: list[MemoryEstimate], total: int | None) -> bool:
        if not others:
            return True
        if self.jobs_per_device != "auto":
            return len(others) < self.jobs_per_device
        if total is None:
            return False
        return sum(one.device_bytes + DEVICE_CONTEXT_BYTES for one in [*others, memory]) <= total


def find_resources(
    machine: HardwareOptions, num_workers: int, memory_bytes: int, jobs_per_device: int | Literal["auto"]
) -> ResourcePool:
    """Resources of this machine that are free for jobs; `num_workers` and `memory_bytes` of 0 are detected.

    Jobs of several ranks run one at a time on GPUs, because each of them sees all GPUs.
    """
    found = [] if machine.accelerator == "cpu" else gpus()
    num_jobs = num_workers or max(1, num_cores() // (machine.num_devices * (machine.num_threads or num_cores())))
    if found and machine.num_devices > 1:
        found, num_jobs = [], 1
    free = {name: free_gpu_bytes(name) for name in found}
    return ResourcePool(
        num_jobs=num_jobs,
        memory_bytes=memory_bytes or int(SHARE * available_bytes()),
        devices={name: None if size is None else int(SHARE * size) for name, size in free.items()},
        jobs_per_device=jobs_per_device,
    )
