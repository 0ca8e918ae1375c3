"""A stream cut into windows: sorted by length inside, they make full batches, and memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

WINDOW_ROWS = 16_384
"""Rows whose batches are made together: with sorting by length hardly any of a batch is padding."""
WINDOW_CHARACTERS = 1 << 25
"""Of text; where rows are long a window ends sooner, so that it never holds more than some hundred MB."""


def windowed(
    items: Iterable[Item], size_of: Callable[[Item], int], max_rows: int = WINDOW_ROWS
) -> Iterator[list[Item]]:
    """Lists of at most `max_rows` items, in order; `size_of` tells an item's characters."""
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
