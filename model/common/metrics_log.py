"""The metrics log (journal.jsonl): an append-only file of JSON lines that training writes and a forwarder reads.

A line is {"stream": str, "step": int, "time_ms": int, "metrics": {name: float}}. A step is never written twice: a
resumed run removes an incomplete last line and skips steps that the log already contains. Readers skip damaged lines.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model.common.errors import UserError


class MetricsLog:
    """Appends metrics to `path`, and flushes after each line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._last_step: dict[str, int] = {}
        self._mend()
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float], stream: str = "train") -> None:
        """Append a line unless `stream` (train, validation, system) has this step; omits non-finite values."""
        if step <= self._last_step.get(stream, -1):
            return
        self._last_step[stream] = step
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        line = {"stream": stream, "step": step, "time_ms": int(time.time() * 1000), "metrics": finite}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file, before the result is written; further `log` calls fail.

        Raises:
            UserError: the directory was deleted during the run, with files that the run had written there.
        """
        self._file.close()
        if not self.path.exists():
            raise UserError(f"{self.path.parent}: deleted while the job worked; run the same command again")

    def _mend(self) -> None:
        whole, num_lines = 0, 0
        for entry, end in read_metrics(self.path):
            whole = end
            num_lines += 1
            self._last_step[entry["stream"]] = max(entry["step"], self._last_step.get(entry["stream"], -1))
        if not self.path.exists():
            return
        os.truncate(self.path, whole)
        with self.path.open("rb") as file:
            num_damaged = sum(1 for _ in file) - num_lines
        if num_damaged:
            print(f"{self.path}: damaged lines are skipped: {num_damaged}", file=sys.stderr, flush=True)


def read_metrics(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield undamaged lines from byte `offset`, each with the offset after it; nothing if the file is missing."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            entry = _parsed(line)
            if entry is not None:
                yield entry, offset


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Parse a line of the log; None if it is damaged."""
    try:
        entry = json.loads(line)
        numbers = [entry["step"], entry["time_ms"], *entry["metrics"].values()]
        is_whole = isinstance(entry["stream"], str) and all(isinstance(one, int | float) for one in numbers)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return entry if is_whole else None
