"""Memory that this process shares with others."""

from __future__ import annotations

from pathlib import Path


def shared_bytes() -> int:
    """Resident bytes shared with other processes: libraries, and memory that a fork has not written to.

    0 on systems other than Linux.
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Shared_Clean:", "Shared_Dirty:")))
