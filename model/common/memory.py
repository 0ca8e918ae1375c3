"""What memory of this process is others' too, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path


def shared_bytes() -> int:
    """What is resident and shared with other processes now: libraries, and what a fork has not written to.

    0 where the kernel does not tell (only Linux does).
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Shared_Clean:", "Shared_Dirty:")))
