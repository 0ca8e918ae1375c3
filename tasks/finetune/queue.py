"""The line of a fan-out: the course's jobs, let in as the room allows, longest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tasks.finetune.memory_estimate import Needs
from tasks.finetune.plan import Planned
from tasks.finetune.scheduler import Course, Work
from tasks.jobs.faults import JobFailed
from tasks.jobs.resource_pool import Lease, Room

_SCARCE = ("memory",)  # faults after which a job has one more attempt, with the machine for itself


class PackedLine:
    """Jobs by name; what has run teaches what the next one needs. `on_end` is told of each result."""

    def __init__(self, course: Course, room: Room, needs: Needs, on_end: Callable[[str, dict[str, Any]], None]) -> None:
        self._course = course
        self._room = room
        self._needs = needs
        self._on_end = on_end
        self._known: dict[str, Work] = {}
        self._alone: set[str] = set()
        self._passed: dict[str, int] = {}
        for one in course.jobs():
            if course.result(one) is not None:
                needs.learn(one)

    def work(self, name: str) -> tuple[Work, Lease]:
        """A running job, and what it holds."""
        return self._known[name], self._room.leases[name]

    def take(self) -> str | None:
        """The longest job that fits. One that others have passed too often is waited for."""
        waiting = sorted(self._course.ready(), key=lambda one: one.name in self._alone)
        for number, one in enumerate(waiting):
            if self._room.take(one.name, self._needs.of(one), one.name in self._alone) is not None:
                self._known[one.name] = one
                self._course.prepare(one)
                self._course.started(one)
                for other in waiting[:number]:
                    self._passed[other.name] = self._passed.get(other.name, 0) + 1
                return one.name
            if self._passed.get(one.name, 0) >= self._room.num_jobs:
                return None
        return None

    def ended(self, name: str, outcome: Any) -> Any:
        """Its room is free. A job that ran out of memory starts again, alone, once."""
        one = self._known[name]
        self._room.give_back(name)
        if isinstance(outcome, dict):
            if isinstance(one, Planned):
                self._needs.learn(one)
            self._course.ended(one, outcome)
            self._on_end(name, outcome)
        elif isinstance(outcome, JobFailed) and outcome.fault in _SCARCE and name not in self._alone:
            self._alone.add(name)
            self._course.stopped(one)
            return None
        elif isinstance(outcome, JobFailed):
            self._course.failed(one)
        else:
            self._course.stopped(one)
        return outcome
