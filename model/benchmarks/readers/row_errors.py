"""Errors in the rows of a file: counted and listed where rows may be skipped, raised otherwise."""

from __future__ import annotations

from pathlib import Path

from model.common.errors import UserError

_NUM_LISTED = 5


class MalformedRow(Exception):
    """A row that cannot be used; the message says why."""


class RowErrors:
    """Collects skipped and suspicious rows of one split.

    Args:
        skips: whether malformed rows may be skipped, as in training files whose benchmark allows it.
    """

    def __init__(self, skips: bool) -> None:
        self.skips = skips
        self.num_skipped = 0
        self._skipped: list[str] = []
        self._noted: dict[str, list[str]] = {}
        self._num_noted: dict[str, int] = {}
        self._ids: set[str] = set()

    @property
    def skipped(self) -> tuple[str, ...]:
        """The first skipped rows, each with the reason."""
        return tuple(self._skipped)

    @property
    def remarks(self) -> tuple[str, ...]:
        """One line for each kind of suspicious row that was kept: how many there are, and the first ones."""
        return tuple(
            f"{what}: {self._num_noted[what]} "
            f"({', '.join(rows)}{', ...' if self._num_noted[what] > _NUM_LISTED else ''})"
            for what, rows in self._noted.items()
        )

    def malformed(self, path: Path, where: int | str, why: str, advice: str = "") -> None:
        """Skip a row that cannot be used.

        Args:
            where: the row's number, or its location in a file without rows.

        Raises:
            UserError: rows may not be skipped.
        """
        if not self.skips:
            raise UserError(f"{path}: {_location(where)}: {why}{advice}")
        self.skip(path, where, why)

    def skip(self, path: Path, where: int | str, why: str) -> None:
        """Skip a row, whatever `skips` says."""
        self.num_skipped += 1
        if len(self._skipped) < _NUM_LISTED:
            self._skipped.append(f"{path.name}: {_location(where)}: {why}")

    def note(self, path: Path, where: int | str, what: str) -> None:
        """Record a row that is kept but suspicious."""
        self._num_noted[what] = self._num_noted.get(what, 0) + 1
        rows = self._noted.setdefault(what, [])
        if len(rows) < _NUM_LISTED:
            rows.append(f"{path.name}: {_location(where)}")

    def unique_id(self, path: Path, where: int | str, row_id: str) -> str:
        """Return the row's id, and record the row if another row has the same id."""
        if row_id in self._ids:
            self.note(path, where, "rows with the name of another row")
        self._ids.add(row_id)
        return row_id


def _location(where: int | str) -> str:
    return f"row {where}" if isinstance(where, int) else where
