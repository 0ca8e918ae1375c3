"""Showing that long work goes on: bars on a terminal, plain lines at most every few seconds in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from model.common.redaction import redacted

LINE_EVERY_SECONDS = 10.0


class Bar:
    """One line of progress. Thread-safe; `update` takes absolute amounts."""

    def __init__(self, name: str, rich_progress: Any | None) -> None:
        self.name = name
        self._rich = rich_progress
        self._row = rich_progress.add_task(name, total=None, text="") if rich_progress is not None else None
        self._said = time.monotonic()
        self._lock = threading.Lock()

    def update(self, done: float, total: float, text: str = "") -> None:
        """`done` of `total` (any unit), with a short text on what is going on."""
        if self._rich is not None:
            self._rich.update(self._row, completed=done, total=total or None, text=text)
            return
        with self._lock:
            if time.monotonic() - self._said < LINE_EVERY_SECONDS:
                return
            self._said = time.monotonic()
        share = f"{100 * done / total:3.0f} %" if total else f"{done:,.0f}"
        echo(f"  {self.name}: {share}  {text}")


class Bars:
    """A group of bars shown together; `bar(name)` adds one."""

    def __init__(self, rich_progress: Any | None) -> None:
        self._rich = rich_progress

    def bar(self, name: str) -> Bar:
        """A new bar at the bottom of the group."""
        return Bar(name, self._rich)


@contextlib.contextmanager
def bars() -> Iterator[Bars]:
    """Bars while the block runs; without a terminal, lines."""
    if not sys.stderr.isatty():
        yield Bars(None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [TextColumn("  {task.description:<24}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %")]
    columns += [TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as rich_progress:
        yield Bars(rich_progress)


def echo(line: str) -> None:
    """A line for the person at the terminal, without secrets."""
    print(redacted(line), file=sys.stderr, flush=True)
