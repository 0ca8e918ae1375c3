"""What a command writes to the terminal: results, notes and warnings, and the progress of long work.

| function | stream | `-q` | `-v` |
|---|---|---|---|
| `show`, `print_json` | stdout | shown | shown |
| `echo` and progress | stderr | hidden | shown |
| `warn` | stderr | shown | shown |
| `detail` | stderr | hidden | shown; hidden without `-v` |

Progress is live bars on a terminal, or a plain line every few seconds without one. A line shows a name, the share that
is done, what the work reports about itself, and the time left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from model.common.redaction import redacted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

VERBOSITY_VARIABLE = "CLOZE_VERBOSITY"
"""quiet or verbose; set by `-q` and `-v`, also for child processes."""
LINE_EVERY_SECONDS = 4.0
"""Seconds between lines without a terminal, in the first ten minutes; later fewer, down to one a minute."""
_MAX_LINE_SECONDS = 60.0
_LINES = 150  # of the time so far
LOG_EVERY_SECONDS = 30.0
"""Seconds between lines in a bar's log."""
PLAIN_WIDTH = 80
_TICK_SECONDS = 0.25
_RATE_SECONDS = 300.0  # the time left is estimated from the rate of the last minutes
_BAR_WIDTHS = range(4, 25)
_MAX_BELOW = 8  # jobs listed below a bar
_last_line = time.monotonic()  # of the process


class Bar:
    """Progress of one piece of work. Thread-safe.

    Args:
        text: shown until the first update.
        poll: called before the bar is shown, to update it.
        is_fallback: show the bar only if there is no other.
        log: called with a line every LOG_EVERY_SECONDS once something is done.
    """

    def __init__(
        self,
        name: str,
        text: str = "",
        poll: Callable[[Bar], None] | None = None,
        log: Callable[[str], None] | None = None,
        is_fallback: bool = False,
    ) -> None:
        self.name = name
        self.poll = poll
        self.is_fallback = is_fallback
        self._log = log
        self._logged = float("-inf")
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._done, self._total, self._text = 0.0, 0.0, text
        self._below: Sequence[str] = ()
        self._rates: deque[tuple[float, float]] = deque()
        self.is_open = True

    def update(self, done: float, total: float, text: str = "", below: Sequence[str] = ()) -> None:
        """Show that `done` of `total` units are done; both are absolute amounts, and a total of 0 is unknown.

        Args:
            text: what the work reports, such as its loss.
            below: further lines, such as one for each running job.
        """
        with self._lock:
            now = time.monotonic()
            if self._rates and done < self._rates[-1][1]:
                self._rates.clear()
            if done and (not self._rates or now - self._rates[-1][0] >= 1):
                self._rates.append((now, done))
                while now - self._rates[0][0] > _RATE_SECONDS:
                    self._rates.popleft()
            self._done, self._total, self._text, self._below = done, total, text, below

    def close(self) -> None:
        """Stop showing the bar."""
        self.is_open = False

    def lines(self, width: int, with_bar: bool = False) -> list[str]:
        """Return the bar and what is below it, as lines of at most `width` characters."""
        with self._lock:
            done, total, text, below = self._done, self._total, self._text, self._below
            left = self._seconds_left()
        share = min(1.0, done / total) if total else 0.0
        parts = [f"{share:.0%}".replace("%", " %")] if share else []
        parts += [text] if text else []
        parts.append(
            f"{duration(left).removesuffix(' min')} left" if left is not None else f"({duration(self._elapsed())})"
        )
        head, tail = f"  {self.name}", "  ".join(parts)
        room = width - len(head) - len(tail) - 3
        if with_bar and room >= _BAR_WIDTHS[0]:
            head += " " + self._drawn(share, min(room, _BAR_WIDTHS[-1]))
        lines = [f"{head}  {tail}", *(f"    {line}" for line in below[:_MAX_BELOW])]
        if len(below) > _MAX_BELOW:
            lines.append(f"    … and {len(below) - _MAX_BELOW} more")
        return [shortened(line, width) for line in lines]

    def log_when_due(self) -> None:
        """Write a line to the log if something is done and the last line is old enough."""
        now = time.monotonic()
        if self._log is not None and self._done and now - self._logged >= LOG_EVERY_SECONDS:
            self._logged = now
            self._log("\n".join(line.strip() for line in self.lines(PLAIN_WIDTH)))

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _seconds_left(self) -> float | None:
        if not self._rates or self._done >= self._total:
            return None
        (begin, before), now = self._rates[0], time.monotonic()
        if now - begin < 2 or self._done <= before:
            return None
        return max(0.0, self._total - self._done) * (self._rates[-1][0] - begin) / (self._rates[-1][1] - before)

    def _drawn(self, share: float, width: int) -> str:
        if share:
            full = round(share * width)
            return "━" * full + "─" * (width - full)
        begin = int(4 * self._elapsed()) % (width - 2)  # nothing is known about the end yet
        return "─" * begin + "━" * 3 + "─" * (width - begin - 3)


class _Display:
    """Shows open bars, from a thread of its own."""

    def __init__(self) -> None:
        self._bars: list[Bar] = []
        self._started = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="progress")
        self._live = _live_area() if _is_terminal() and not _is_quiet() else None

    def add(self, bar: Bar) -> Bar:
        self._bars.append(bar)
        return bar

    def start(self) -> None:
        if self._live is not None:
            self._live.start()
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()
        if self._live is not None:
            self._live.stop()

    def _run(self) -> None:
        while not self._ending.wait(_TICK_SECONDS):
            shown = [bar for bar in self._bars if bar.is_open]
            shown = [bar for bar in shown if not bar.is_fallback] or shown
            for bar in shown:
                if bar.poll is not None:
                    bar.poll(bar)
                bar.log_when_due()
            if self._live is not None:
                self._draw(self._live, shown)
            elif time.monotonic() - _last_line >= line_interval(time.monotonic() - self._started):
                for bar in shown:
                    for line in bar.lines(PLAIN_WIDTH):
                        echo(line)

    @staticmethod
    def _draw(live: Live, shown: Sequence[Bar]) -> None:
        from rich.text import Text

        width = live.console.width - 1  # some terminals wrap a full line
        text = Text("\n".join(line for bar in shown for line in bar.lines(width, with_bar=True)), no_wrap=True)
        text.highlight_regex("━+", "green")
        live.update(text, refresh=True)


def line_interval(elapsed: float) -> float:
    """Return the seconds between plain lines, `elapsed` seconds after the work has started."""
    return max(LINE_EVERY_SECONDS, min(_MAX_LINE_SECONDS, elapsed / _LINES))


def _live_area() -> Live:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), auto_refresh=False, transient=True)


def _is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


_display: _Display | None = None


@contextlib.contextmanager
def bars() -> Iterator[Callable[..., Bar]]:
    """Show progress while the block runs; yields a function that adds a bar (with the arguments of `Bar`).

    The bars of a block inside another block are shown with the other's.
    """
    global _display
    outer, opened = _display, []
    display = outer or _Display()

    def add(*arguments: Any, **options: Any) -> Bar:
        opened.append(display.add(Bar(*arguments, **options)))
        return opened[-1]

    if outer is None:
        _display = display
        display.start()
    try:
        yield add
    finally:
        for bar in opened:
            bar.close()
        if outer is None:
            _display = None
            display.stop()


@contextlib.contextmanager
def working(what: str, is_fallback: bool = False) -> Iterator[None]:
    """Show what the user is waiting for while the block runs; as a fallback, only while it shows nothing else."""
    with bars() as add_bar:
        add_bar(what, is_fallback=is_fallback)
        yield


def show(line: str) -> None:
    """Print a line of a result to standard output, with secrets redacted."""
    print(redacted(line), flush=True)


def print_json(content: Any) -> None:
    """Print a result as a JSON document to standard output, with secrets redacted."""
    show(json.dumps(content, indent=1, ensure_ascii=False))


def echo(line: str) -> None:
    """Print a note to standard error, with secrets redacted; on a terminal, break it between words."""
    global _last_line
    _last_line = time.monotonic()
    if not _is_quiet():
        warn(line)


def warn(line: str) -> None:
    """Print a warning to standard error, like `echo`, also with `-q`."""
    line = redacted(line)
    if sys.stderr.isatty():
        line = "\n".join(_fitted(part) for part in line.split("\n"))
    print(line, file=sys.stderr, flush=True)


def detail(line: str) -> None:
    """Print a note, like `echo`, only with `-v`."""
    if os.environ.get(VERBOSITY_VARIABLE) == "verbose":
        echo(line)


def _is_quiet() -> bool:
    return os.environ.get(VERBOSITY_VARIABLE) == "quiet"


def console(min_width: int = PLAIN_WIDTH) -> Console:
    """Return a console for standard output; without a terminal, it has at least `min_width` columns for tables."""
    from rich.console import Console

    found = Console()
    return found if sys.stdout.isatty() else Console(width=max(found.width, min_width))


def _fitted(line: str) -> str:
    width = shutil.get_terminal_size().columns - 1
    if len(line) <= width:
        return line
    indent = " " * (4 + len(line) - len(line.lstrip()))
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def shortened(line: str, width: int = 0) -> str:
    """Return the line, cut to `width` characters (default: the width of the terminal, or 80 columns)."""
    width = width or shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    return line if len(line) <= width else f"{line[: width - 1]}…"


def duration(seconds: float) -> str:
    """Return a duration for people: 8 s, 2:05 min, 1:20 h or 3 d 4 h."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02} h" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def amount(number: float) -> str:
    """Return a large number in a few characters: 950, 12.3k, 1.2M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 100 * size else f"{number / size:.0f}{unit}"
    return f"{number:.0f}"


def scientific(number: float) -> str:
    """Return a number as learning rates are written: 3e-5."""
    digits, exponent = f"{number:e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"
