"""Who does the work on units: processes of this machine, or a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tasks.parallel import unordered_map

Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """A map whose results come in any order."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """(Item, `function` of it) as they are done."""


@dataclass(frozen=True)
class LocalProcesses:
    """Processes that end with this one."""

    num_workers: int

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """(Item, `function` of it) as they are done."""
        return unordered_map(function, items, self.num_workers)
