"""What this machine has for jobs: cores, memory, GPUs; found without starting CUDA in this process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Cores this process may use (a container or taskset may give fewer than the machine has)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Memory that is to be had now: the machine's, or what the container's limit leaves of it."""
    import psutil

    available = int(psutil.virtual_memory().available)
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = int((cgroup / limit_name).read_text())
            used = int((cgroup / used_name).read_text())
            facts = (cgroup / limit_name).with_name("memory.stat").read_text().splitlines()
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
        cache = sum(int(line.split()[1]) for line in facts if line.split()[0] == cache_name)  # given up when asked for
        available = min(available, max(0, limit - used + cache))
    return available


def gpus() -> list[str]:
    """The GPUs that jobs may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device.strip()]
    devices = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index, _ in enumerate(devices.iterdir())] if devices.is_dir() else []


def free_gpu_bytes(device: str) -> int | None:
    """The free memory of a GPU; None where `nvidia-smi` does not tell."""
    command = ["nvidia-smi", f"--id={device}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return int(done.stdout.strip()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def out_of_memory_kills() -> int:
    """How many processes the kernel has ended for want of memory since it started; 0 where it does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
