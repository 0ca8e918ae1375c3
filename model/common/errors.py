"""Faults that have a name. A user's mistake is one clear line and exit code 2, never a traceback."""

from __future__ import annotations

from typing import Literal


class UserError(Exception):
    """A mistake in what the user gave (file, row, parameter, folder).

    The message is one line: the file and row, what was expected, and what to do about it.
    """


class Paused(Exception):
    """Training was asked to stop, has saved its state, and is to be continued."""


class Diverged(Exception):
    """Training cannot succeed: its loss is not finite ("non-finite"), or does not fall ("hopeless")."""

    def __init__(self, fault: Literal["non-finite", "hopeless"], message: str) -> None:
        super().__init__(message)
        self.fault: Literal["non-finite", "hopeless"] = fault
