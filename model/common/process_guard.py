"""The process guard ends a process when its launcher ends.

A launcher hands its child the read end of a pipe in the environment variable CLOZE_LIFELINE (a file descriptor
number) and keeps the write end open. When the launcher ends, even by kill -9, the pipe is closed; a thread in the child
notices and kills the child's process group. Ranks have separate sessions under torchrun, and end when torchrun ends.

`python -P -m model.common.process_guard COMMAND...` runs another program (a server) under the same guard.
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
    """Create a pipe: (read end for the child, write end to keep). Pass the read end with `pass_fds`."""
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    return read_end, write_end


def guard(on_end: str = "group") -> None:
    """End this process when the pipe in its environment is closed; without one, do nothing.

    `on_end` is "group" (kill this process group) or "self" (kill only this process, such as a fork of a worker).
    """
    descriptor = os.environ.pop(VARIABLE, "")  # not inherited by children
    if descriptor:
        wait: Callable[[], None] = functools.partial(_wait_for_end, int(descriptor))
    elif _TORCHRUN in os.environ:  # torchrun does not pass on descriptors, but is guarded itself
        wait = functools.partial(_wait_for_parent, os.getppid())
    else:
        return
    threading.Thread(target=_die_after, args=(wait, on_end), daemon=True, name="lifeline").start()


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent thread ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_end(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 1):  # returns nothing when the last write end is closed
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
    """Run `command` in this process group, which is killed when the pipe is closed, with all inherited descriptors."""
    guard()
    child = subprocess.Popen(command, close_fds=False)
    for forwarded in (signal.SIGTERM, signal.SIGINT):
        signal.signal(forwarded, lambda number, _frame: child.send_signal(number))
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
