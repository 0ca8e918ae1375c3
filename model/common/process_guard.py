"""The process guard: a process ends when the process that started it ends.

A launcher hands its child the read end of a pipe in the environment variable CLOZE_LIFELINE (a file descriptor
number) and keeps the write end open. When the launcher ends in any way, kill -9 included, the pipe ends too; a thread
in the child sees that and kills the child's whole process group. Ranks, to which torchrun gives
sessions of their own, follow torchrun.

`python -P -m model.common.process_guard COMMAND...` runs a foreign command (a server) under the same guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

VARIABLE = "CLOZE_LIFELINE"
_TORCHRUN = "TORCHELASTIC_RUN_ID"  # torchrun sets it for its ranks
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def open_guard_pipe() -> tuple[int, int]:
    """A pipe as (read end for the child, write end to keep); pass the read end on with `pass_fds`."""
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    return read_end, write_end


def guard(on_end: str = "group") -> None:
    """Tie this process to the lifeline in its environment; without one, do nothing.

    `on_end` is "group" (kill this process group) or "self" (kill this process alone: a warm worker's fork).
    """
    descriptor = os.environ.pop(VARIABLE, "")  # children get lifelines of their own, or none
    if descriptor:
        wait: Callable[[], None] = functools.partial(_wait_for_end, int(descriptor))
    elif _TORCHRUN in os.environ:  # torchrun hands no descriptors on; it is guarded itself, and its ranks follow it
        wait = functools.partial(_wait_for_parent, os.getppid())
    else:
        return
    threading.Thread(target=_die_after, args=(wait, on_end), daemon=True, name="lifeline").start()


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent thread ends (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_end(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 1):  # nobody writes: this returns empty when the last write end is closed
            continue


def _wait_for_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)


def _die_after(wait: Callable[[], None], on_end: str) -> None:
    wait()
    if on_end == "group":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main(command: list[str]) -> int:
    """Run `command` in this process group; when the lifeline ends, the group is killed."""
    guard()
    child = subprocess.Popen(command)
    for forwarded in (signal.SIGTERM, signal.SIGINT):
        signal.signal(forwarded, lambda number, _frame: child.send_signal(number))
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
