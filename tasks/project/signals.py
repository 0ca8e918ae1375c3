"""Being asked to stop: the first Ctrl-C (or SIGTERM) lets training save its state, the second kills.

Waiting code polls `requested`; training processes have sessions of their own, so a Ctrl-C reaches them only through it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

requested = threading.Event()


def ask(number: int, _frame: FrameType | None) -> None:
    """The signal handler: ask once, kill on the second time (children die with this process)."""
    if requested.is_set() and number == signal.SIGINT:
        os.write(2, b"\ncloze: killed\n")
        os._exit(130)
    if not requested.is_set():
        os.write(2, b"\ncloze: saving and stopping; Ctrl-C again kills\n")
    requested.set()


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Take SIGINT and SIGTERM as requests to stop while the block runs."""
    requested.clear()
    with keep_handling_signals():
        yield


@contextlib.contextmanager
def keep_handling_signals() -> Iterator[None]:
    """The same within a flow, where Prefect has put a handler of its own.

    That one raises in the main thread, which then waits for tasks that were never told to end. Does nothing in other
    threads, which get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_with_dvc() -> None:
    """Under `dvc repro`, end this process when DVC does: killing DVC leaves its stage running otherwise.

    The watched processes are the shells between DVC and this one, and DVC itself. Linux only (pidfd); elsewhere the
    stage runs to its end.
    """
    if "DVC_STAGE" not in os.environ or not hasattr(os, "pidfd_open"):
        return
    import psutil

    for process in psutil.Process().parents():
        try:
            descriptor = os.pidfd_open(process.pid)
            shell = process.name() in {"sh", "bash", "dash", "zsh", "fish", "ash"}
        except (psutil.Error, OSError):
            os._exit(1)  # gone already
        threading.Thread(target=_end_with, args=(descriptor,), daemon=True, name="door").start()
        if not shell:
            return


def _end_with(descriptor: int) -> None:
    import select

    poller = select.poll()
    poller.register(descriptor, select.POLLIN)  # readable when the process has ended
    poller.poll()
    sys.stderr.write("cloze: dvc is gone; stopping\n")
    os._exit(1)
