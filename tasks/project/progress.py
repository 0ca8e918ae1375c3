"""Progress of long tasks: bars on a terminal, or plain lines every few seconds in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from model.common.redaction import redacted

LINE_EVERY_SECONDS = 10.0


class Bar:
    """One progress bar. Thread-safe."""

    def __init__(self, name: str, rich_progress: Any | None = None) -> None:
        self.name = name
        self._rich = rich_progress
        self._row = rich_progress.add_task(name, total=None, text="") if rich_progress is not None else None
        self._last_line = time.monotonic()
        self._lock = threading.Lock()

    def update(self, done: float, total: float, text: str = "") -> None:
        """Show that `done` of `total` units are done, with a short description; both are absolute amounts."""
        if self._rich is not None:
            self._rich.update(self._row, completed=done, total=total or None, text=text)
            return
        with self._lock:
            if time.monotonic() - self._last_line < LINE_EVERY_SECONDS:
                return
            self._last_line = time.monotonic()
        share = f"{100 * done / total:3.0f} %" if total else f"{done:,.0f}"
        echo(f"  {self.name}: {share}  {text}")


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str], Bar]]:
    """Show bars while the block runs, and yield a function that adds one; without a terminal, print lines."""
    if not sys.stderr.isatty():
        yield Bar
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [TextColumn("  {task.description:<24}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %")]
    columns += [TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as rich_progress:
        yield lambda name: Bar(name, rich_progress)


def echo(line: str) -> None:
    """Print a line to standard error, with secrets redacted."""
    print(redacted(line), file=sys.stderr, flush=True)
