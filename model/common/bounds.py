"""Types of settings with their limits.

Limits are far above what a run can use, and below what overflows a 64-bit integer, a 32-bit float, memory or the name
of a file. Use them without further limits: pydantic lets those of the type win.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from model.common.files import MOST_NAME_BYTES, has_long_name

MOST_CHARACTERS = 10_000
"""Length of a text without another limit, such as a note."""
MOST_ELEMENTS = 1000
"""Encoders, phases, seeds, grid points: each is at least one job, or is compared with all others."""
_MOST_LINE = 1000
_BREAKS_A_LINE = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def _number(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic would take 1 or 0
        raise ValueError("expected a number, not true or false (YAML reads yes, no, on and off as these)")
    return value


def _line(text: str) -> str:
    if len(text) > _MOST_LINE:
        raise ValueError(f"longer than {_MOST_LINE} characters")
    if _BREAKS_A_LINE.search(text):
        raise ValueError("expected one line without control characters")
    return text


def _path(path: str) -> str:
    if has_long_name(path):
        raise ValueError(f"a name in it is longer than {MOST_NAME_BYTES} bytes")
    return path


NUMBER = BeforeValidator(_number)
"""Refuses true and false."""

Seed = Annotated[int, Field(ge=0, le=2**64 - 1), NUMBER]
"""A seed: random keys have 64 bits."""
Count = Annotated[int, Field(ge=1, le=10**9), NUMBER]
"""A number of steps, rows, documents or words; a billion is the usual way to say "never" or "all"."""
CountOrZero = Annotated[int, Field(ge=0, le=10**9), NUMBER]
Tokens = Annotated[int, Field(ge=1, le=10**15), NUMBER]
"""Tokens of a training; the largest known ones have read 10^14."""
Size = Annotated[int, Field(ge=1, le=2**20), NUMBER]
"""A batch size, or a number of tokens in a row."""
SequenceLength = Annotated[int, Field(ge=8, le=2**20), NUMBER]
Positions = Annotated[int, Field(ge=3, le=2**20), NUMBER]
Width = Annotated[int, Field(ge=1, le=2**16), NUMBER]
"""Width of a layer, or a rank."""
FeedForwardWidth = Annotated[int, Field(ge=0, le=2**18), NUMBER]
"""0 takes four times the width of the hidden states."""
Layers = Annotated[int, Field(ge=1, le=1000), NUMBER]
"""Layers of an encoder, or attention heads of a layer."""
LayersOrZero = Annotated[int, Field(ge=0, le=1000), NUMBER]
Epochs = Annotated[int, Field(ge=1, le=100_000), NUMBER]
Processes = Annotated[int, Field(ge=1, le=10_000), NUMBER]
"""Nodes, devices, cores or jobs."""
ProcessesOrZero = Annotated[int, Field(ge=0, le=10_000), NUMBER]
Bytes = Annotated[int, Field(ge=0, le=2**50), NUMBER]
ItemBytes = Annotated[int, Field(ge=1000, le=2**50), NUMBER]
"""Size from which one item, such as a page, is too large."""

Share = Annotated[float, Field(ge=0, le=1), NUMBER]
ShareAboveZero = Annotated[float, Field(gt=0, le=1), NUMBER]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1), NUMBER]
"""A dropout rate, or a decay rate."""
Rate = Annotated[float, Field(gt=0, le=1000), NUMBER]
"""A learning rate, or a deviation."""
Epsilon = Annotated[float, Field(gt=0, le=1), NUMBER]
Positive = Annotated[float, Field(gt=0, le=1e9), NUMBER]
"""A norm, a loss, a scale, or a time in seconds (Python's waits overflow beyond 9e9)."""
NotNegative = Annotated[float, Field(ge=0, le=1e9), NUMBER]
Points = Annotated[float, Field(ge=0, le=100), NUMBER]
"""A difference of scores."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
"""A name in tables and directory names, which add a seed and other names: together they stay below 255 bytes."""
Line = Annotated[str, AfterValidator(_line)]
"""Text that becomes part of a message, a file or a command of one line."""
FilePath = Annotated[Line, AfterValidator(_path)]
"""A path that a file system can hold."""
