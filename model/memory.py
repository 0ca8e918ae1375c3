"""How much memory this process takes, as the kernel counts it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of getrusage


def peak_bytes() -> int:
    """The most that was resident since the process was started or forked."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


def shared_bytes() -> int:
    """What is resident and shared with other processes now: libraries, and what a fork has not written to.

    0 where the kernel does not tell (only Linux does).
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Shared_Clean:", "Shared_Dirty:")))
