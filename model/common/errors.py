"""Exceptions. User errors are reported as one line with exit code 2, never as a traceback."""

from __future__ import annotations

from typing import Literal


class UserError(Exception):
    """A mistake in the input (file, row, parameter, folder).

    The message is one line: the file and row, the expected content, and the remedy.
    """


def shown(value: object) -> str:
    """Quote a value from outside for a message; long ones are cut."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has no message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


_LONGEST_LINE = 2000  # characters; the longest paths have half of that


def printable(line: str) -> str:
    """Escape what would control a terminal or reorder its text, and leave out the middle of an endless line."""
    line = line if len(line) <= _LONGEST_LINE else f"{line[:1200]} … {line[-700:]}"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


_EXTRAS = {
    **dict.fromkeys(("onnx", "onnxruntime"), "export"),
    **dict.fromkeys(("aiohttp", "kubernetes_asyncio", "prefect_kubernetes"), "cluster"),
    **dict.fromkeys(("cryptography", "dask", "distributed", "flask_wtf", "prefect_dask", "psycopg2"), "cluster"),
}
"""Package → extra of Cloze that installs it; the others are in the extra "pipeline"."""


def missing_package(error: ImportError, what: str) -> UserError:
    """Return the error for a package that is not installed; `what` names the option or function that needs it."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package, "pipeline")
    return UserError(f"{what} needs the package {package}; run `pip install 'cloze[{extra}]'`")


class Paused(Exception):
    """Training was asked to stop and has saved its state to resume later."""


class Diverged(Exception):
    """Training cannot succeed: its loss is not finite ("non-finite"), or does not fall ("hopeless")."""

    def __init__(self, fault: Literal["non-finite", "hopeless"], message: str) -> None:
        super().__init__(message)
        self.fault: Literal["non-finite", "hopeless"] = fault
