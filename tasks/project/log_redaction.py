"""Secrets kept out of logs, tracebacks and the records of servers, in this process.

What is printed for people goes through `tasks.project.progress.echo`; what is logged, through a record factory that
every logger
uses; what nobody caught, through the hooks of Python. Exceptions on their way to Prefect, whose database keeps their
messages, go through `clean_errors`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from model.common.redaction import redacted

_MARK = "_cloze_redacts"


def install() -> None:
    """Put the hooks in their places; twice is once."""
    before = logging.getLogRecordFactory()
    if getattr(before, _MARK, False):
        return

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        _clean_record(record)
        return record

    setattr(make, _MARK, True)
    logging.setLogRecordFactory(make)
    sys.excepthook = _show
    threading.excepthook = lambda found: _show(found.exc_type, found.exc_value, found.exc_traceback)


@contextlib.contextmanager
def clean_errors() -> Iterator[None]:
    """Take secrets out of the messages of exceptions that leave the block; their kinds stay."""
    try:
        yield
    except BaseException as error:
        clean(error)
        raise


def clean(error: BaseException | None) -> None:
    """The same for one exception and those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error.args, tuple):
            error.args = tuple(redacted(part) if isinstance(part, str) else part for part in error.args)
        error = error.__cause__ or error.__context__


def _clean_record(record: logging.LogRecord) -> None:
    try:
        message = record.getMessage()
    except (TypeError, ValueError):  # a call of logging that is itself wrong; logging says so when it is shown
        return
    clean_message = redacted(message)
    if clean_message != message:
        record.msg, record.args = clean_message, ()
    if record.exc_info and record.exc_info[1] is not None:
        text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        clean_text = redacted(text)
        if clean_text != text:
            clean(record.exc_info[1])
            record.exc_text = clean_text


def _show(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Python's traceback, without secrets."""
    sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))
