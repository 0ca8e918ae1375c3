"""What is wrong with rows: counted and named where they may be skipped, refused where not."""

from __future__ import annotations

from pathlib import Path

from model.common.errors import UserError

_NAMED = 5  # rows that are named; more are only counted


class Malformed(Exception):
    """A row that cannot be used; the message says why."""


class Faults:
    """The rows of one part that were skipped, and those that were kept though they look odd.

    `skips` says whether malformed rows may be skipped: training rows of a benchmark whose row says so.
    """

    def __init__(self, skips: bool) -> None:
        self.skips = skips
        self.num_skipped = 0
        self._skipped: list[str] = []
        self._noted: dict[str, list[str]] = {}
        self._num_noted: dict[str, int] = {}
        self._identities: set[str] = set()

    @property
    def skipped(self) -> tuple[str, ...]:
        """The first rows that were skipped, with the reason."""
        return tuple(self._skipped)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is odd about rows that were kept: one line for each kind, with how many and the first of them."""
        return tuple(
            f"{what}: {self._num_noted[what]} ({', '.join(rows)}{', ...' if self._num_noted[what] > _NAMED else ''})"
            for what, rows in self._noted.items()
        )

    def malformed(self, path: Path, where: int | str, why: str, advice: str = "") -> None:
        """A row (its number, or its place in a file that has no rows) cannot be used.

        Raises:
            UserError: rows are not to be skipped here.
        """
        if not self.skips:
            raise UserError(f"{path}: {_place(where)}: {why}{advice}")
        self.skip(path, where, why)

    def skip(self, path: Path, where: int | str, why: str) -> None:
        """A row is left out, whatever `skips` says."""
        self.num_skipped += 1
        if len(self._skipped) < _NAMED:
            self._skipped.append(f"{path.name}: {_place(where)}: {why}")

    def note(self, path: Path, where: int | str, what: str) -> None:
        """A row is kept, but odd."""
        self._num_noted[what] = self._num_noted.get(what, 0) + 1
        rows = self._noted.setdefault(what, [])
        if len(rows) < _NAMED:
            rows.append(f"{path.name}: {_place(where)}")

    def identity(self, path: Path, where: int | str, name: str) -> str:
        """The row's name, noted when another row has it too."""
        if name in self._identities:
            self.note(path, where, "rows with the name of another row")
        self._identities.add(name)
        return name


def _place(where: int | str) -> str:
    return f"row {where}" if isinstance(where, int) else where
