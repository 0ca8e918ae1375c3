"""Faults that have a name. A user's mistake is one clear line and exit code 2, never a traceback."""


class UserError(Exception):
    """A mistake in what the user gave (file, row, parameter, folder).

    The message is one line: the file and row, what was expected, and what to do about it.
    """


class Paused(Exception):
    """Training was asked to stop, has saved its state, and is to be continued."""
