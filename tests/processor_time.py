"""Bounds of processor time that hold on slow and busy machines."""

from __future__ import annotations

import time

LOOPS, SECONDS = 1_500_000, 0.12
"""The loop of `_slowness`, and its time on an idle core of a server of 2023 (Python 3.11)."""


def check_processor_time(seconds: float, limit: float) -> None:
    """Check that processor `seconds` taken here are less than `limit`, which is meant for an idle core.

    Where the limit is exceeded, it is multiplied by how much longer a loop takes here and now.
    """
    if seconds >= limit:
        assert seconds < limit * max(1, _slowness())


def _slowness() -> float:
    begin, total = time.process_time(), 0
    for number in range(LOOPS):
        total += number * number % 7
    return (time.process_time() - begin) / SECONDS
