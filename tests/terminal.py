"""Run a command in a pseudo-terminal, as a person does."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOR = re.compile(r"\x1b\[[0-9;]*[349][0-7][;m]")
_ABOUT_TERMINALS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")


def on_terminal(
    command: Sequence[str], cwd: Path, columns: int = 80, environment: Mapping[str, str] = os.environ, **variables: str
) -> str:
    """Return what `command` writes to a terminal of `columns` columns; it has to succeed.

    Args:
        environment: variables of the command, without those about terminals.
        variables: further ones, such as TERM (default: xterm-256color).
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {name: value for name, value in environment.items() if name not in _ABOUT_TERMINALS}
    given = {**inherited, "TERM": "xterm-256color", **variables}
    process = subprocess.Popen(command, cwd=cwd, env=given, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    assert process.wait() == 0, written.decode()
    return written.decode()
