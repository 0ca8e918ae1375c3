"""Waiting for another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_for(condition: Callable[[], Value], seconds: float = 120, every: float = 0.05) -> Value:
    """Call `condition` every few moments until its value is true; that value.

    Raises:
        AssertionError: it is not true within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {seconds:.0f} s"
        time.sleep(every)
    return value
