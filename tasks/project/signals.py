"""Stop requests: the first Ctrl-C (or SIGTERM) lets training save its state, the second kills the run.

Waiting code polls `requested`. Training processes run in separate sessions, so Ctrl-C reaches them only through it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import connection
from types import FrameType

requested = threading.Event()


def ask(number: int, _frame: FrameType | None) -> None:
    """Signal handler: request a stop; kill this process, and with it its children, on the second Ctrl-C."""
    if requested.is_set() and number == signal.SIGINT:
        os.write(2, b"\ncloze: killed\n")
        os._exit(130)
    if not requested.is_set():
        os.write(2, b"\ncloze: saving and stopping; Ctrl-C again kills\n")
    requested.set()


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Treat SIGINT and SIGTERM as stop requests while the block runs."""
    requested.clear()
    with keep_handling_signals():
        yield


@contextlib.contextmanager
def keep_handling_signals() -> Iterator[None]:
    """Like `handle_signals`, inside a flow, where Prefect has installed a handler.

    Prefect's handler raises in the main thread, which then waits for tasks that were not asked to stop. In other
    threads, which receive no signals, this does nothing.
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
    """Under `dvc repro`, end this process when DVC ends; otherwise killing DVC would leave its stage running.

    Watches DVC and the shells between DVC and this process. Linux only (pidfd); on other systems the stage runs until
    it finishes.
    """
    if "DVC_STAGE" not in os.environ or not hasattr(os, "pidfd_open"):
        return
    import psutil

    for process in psutil.Process().parents():
        try:
            descriptor = os.pidfd_open(process.pid)
            shell = process.name() in {"sh", "bash", "dash", "zsh", "fish", "ash"}
        except (psutil.Error, OSError):
            os._exit(1)  # it has already ended
        message = "cloze: dvc has ended; stopping\n"
        threading.Thread(target=exit_after, args=(descriptor, message), daemon=True, name="dvc").start()
        if not shell:
            return


def exit_after(descriptor: int, message: str = "") -> None:
    """End this process when another process has ended, whose sentinel or pidfd becomes readable then."""
    connection.wait([descriptor])
    sys.stderr.write(message)
    os._exit(1)
