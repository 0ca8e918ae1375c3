"""Timing of the parts of a run."""

from __future__ import annotations

import time


class Stopwatch:
    """Seconds of each part of a run, for timing.json."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._start = self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Record the time since the last lap as `name`."""
        now = time.monotonic()
        self.laps[name], self._last = now - self._last, now

    def total(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start
