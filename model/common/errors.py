"""Exceptions. User errors are reported as one line with exit code 2, never as a traceback."""

from __future__ import annotations

from typing import Literal


class UserError(Exception):
    """A mistake in the input (file, row, parameter, folder).

    The message is one line: the file and row, the expected content, and the remedy.
    """


class Paused(Exception):
    """Training was asked to stop and has saved its state to resume later."""


class Diverged(Exception):
    """Training cannot succeed: its loss is not finite ("non-finite"), or does not fall ("hopeless")."""

    def __init__(self, fault: Literal["non-finite", "hopeless"], message: str) -> None:
        super().__init__(message)
        self.fault: Literal["non-finite", "hopeless"] = fault
