"""Redaction of secrets in logs, tracebacks and server records of this process.

Terminal output goes through `tasks.project.progress.echo`, log records through a record factory, and uncaught
exceptions through Python's hooks. Exceptions that reach Prefect, whose database stores their messages, go through
`clean_errors`.
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
    """Install the hooks; repeated calls have no effect."""
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
    """Redact the messages of exceptions that leave the block; their types stay the same."""
    try:
        yield
    except BaseException as error:
        clean(error)
        raise


def clean(error: BaseException | None) -> None:
    """Redact the messages of an exception and of its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error.args, tuple):
            error.args = tuple(redacted(part) if isinstance(part, str) else part for part in error.args)
        error = error.__cause__ or error.__context__


def _clean_record(record: logging.LogRecord) -> None:
    try:
        message = record.getMessage()
    except (TypeError, ValueError):  # malformed logging call; logging reports it when it formats the record
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
    sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))
