"""A process dies with the one that started it.

A launcher hands its child the read end of a pipe in the environment variable CLOZE_LIFELINE (a file descriptor
number) and keeps the write end open. When the launcher ends in any way, kill -9 included, the pipe ends too; a thread
in the child sees that and kills the child's whole process group. Ranks that torchrun gives sessions of their own
inherit the descriptor and do the same for themselves.

`python -P -m model.lifeline COMMAND...` runs a foreign command (a server) under the same guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

VARIABLE = "CLOZE_LIFELINE"
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def open_lifeline() -> tuple[int, int]:
    """A pipe as (read end for the child, write end to keep); pass the read end on with `pass_fds`."""
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    return read_end, write_end


def guard(on_end: str = "group") -> None:
    """Tie this process to the lifeline in its environment; without one, do nothing.

    `on_end` is "group" (kill this process group) or "self" (kill this process alone: a warm worker's fork).
    """
    descriptor = os.environ.get(VARIABLE)
    if not descriptor:
        return
    threading.Thread(
        target=_wait_for_end, args=(int(descriptor), on_end), daemon=True, name="lifeline"
    ).start()


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent thread ends (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_end(descriptor: int, on_end: str) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 1):  # nobody writes: this returns empty when the last write end is closed
            continue
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
