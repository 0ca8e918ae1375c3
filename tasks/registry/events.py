"""The history of the champion as events, and what follows from it: rollback targets, `best` and the looks so far.

The functions are pure, so that simulations decide as the registry does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.project.workspace import timestamp, user_name
from tasks.registry.gate import Look

Act = Literal["promoted", "forced", "refused", "rolled back"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """A decision about the champion."""

    when: str = dataclasses.field(default_factory=timestamp)
    act: Act
    """`forced` is a promotion against the gate."""
    version: int
    """Version of the encoder that was promoted or refused, or, after a rollback, is champion again."""
    encoder: str
    before: int | None
    """Version of the previous champion."""
    best: int | None = None
    """Version of the best champion ever after the event; None in events of older releases and before any champion."""
    reason: str
    by: str = dataclasses.field(default_factory=user_name)
    """User name."""
    verdict: dict[str, Any] | None = None
    """Verdict of the gate (`Verdict.record`)."""


def champions(events: Iterable[Event]) -> list[Event]:
    """List the promotions that a rollback can return to, the current champion's last; skips rolled-back versions."""
    found: list[Event] = []
    for event in events:
        if event.act in ("promoted", "forced"):
            found = [one for one in found if one.version != event.version] + [event]
        elif event.act == "rolled back":
            versions = [one.version for one in found]
            found = found[: versions.index(event.version) + 1] if event.version in versions else [event]
    return found


def best_after_rollback(events: Sequence[Event], version: int, best: int | None) -> int:
    """Return the best version after a rollback to `version`: `best`, unless it is rolled back itself; else the best one
    when the latest of the remaining champions was promoted."""
    left = champions([*events, Event(act="rolled back", version=version, encoder="", before=None, reason="")])
    candidates = [best, *(event.best for event in reversed(left))]
    return next((one for one in candidates if one in {event.version for event in left}), version)


def looks_of(events: Iterable[Event]) -> list[Look]:
    """Return all looks that were recorded, oldest first. Events of older releases record none."""
    recorded = [(event.verdict or {}).get("look") for event in events]
    return [Look(**{**look, "rows": tuple(look["rows"])}) for look in recorded if look]
