"""What follows from the history: rollback targets, the best champion and the looks."""

from __future__ import annotations

import json

from tasks.params.root import PromotionSettings
from tasks.registry.events import Act, Event, best_after_rollback, champions, looks_of
from tasks.registry.gate import judge
from tests.tasks.registry.test_gate import CHAMPION, precise


def event(act: Act, version: int, best: int | None = None) -> Event:
    return Event(act=act, version=version, encoder="e", before=None, best=best, reason="r", by="b")


def test_a_rolled_back_version_is_not_best() -> None:
    steady = [event("promoted", 1, 1), event("promoted", 2, 1), event("refused", 3, 1)]
    assert best_after_rollback(steady, 1, 1) == 1
    moved = [*steady, event("promoted", 4, 4)]
    assert best_after_rollback(moved, 2, 4) == 1, "the best one when version 2 was promoted"
    kept = [event("promoted", 1, 1), event("promoted", 2, 2), event("promoted", 3, 2)]
    assert best_after_rollback(kept, 2, 2) == 2
    assert best_after_rollback([*kept, event("rolled back", 2, 2)], 1, 2) == 1
    again = [event("promoted", 1, 1), event("promoted", 2, 1), event("forced", 1, 1)]
    assert [one.version for one in champions(again)] == [2, 1]
    assert best_after_rollback(again, 2, 1) == 2, "version 1 was rolled back, so its champion is all that is left"


def test_champions_of_older_releases_have_no_best() -> None:
    old = [event("promoted", 1), event("promoted", 2), event("promoted", 3)]
    assert best_after_rollback(old, 2, 3) == 2
    assert best_after_rollback(old, 2, 1) == 1


def test_looks_are_recorded_in_the_history() -> None:
    settings, events = PromotionSettings(), [event("promoted", 1, 1)]
    numbers = []
    for name in ("one", "two", "one"):
        verdict = judge(precise(name, 60.0), CHAMPION, settings, looks_of(events))
        assert verdict.look is not None
        numbers.append(verdict.look.number)
        record = json.loads(json.dumps(verdict.record()))
        events.append(Event(act="refused", version=2, encoder="e", before=1, best=1, reason="r", verdict=record))
    assert numbers == [1, 2, 1]
    assert [look.number for look in looks_of(events)] == numbers
