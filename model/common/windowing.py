"""Split a stream into windows that are sorted by length and batched, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

WINDOW_ROWS = 16_384
"""Rows that are batched together; sorted by length, they need hardly any padding."""
WINDOW_CHARACTERS = 1 << 25
"""Characters after which a window of long rows ends, to limit memory."""


def windowed(
    items: Iterable[Item], size_of: Callable[[Item], int], max_rows: int = WINDOW_ROWS
) -> Iterator[list[Item]]:
    """Lists of at most `max_rows` items, in order; `size_of` returns the characters of an item."""
    window: list[Item] = []
    characters = 0
    for item in items:
        window.append(item)
        characters += size_of(item)
        if len(window) >= max_rows or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window
