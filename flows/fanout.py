"""Running many jobs side by side as Prefect tasks, and gathering how they ended."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, Protocol

from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task

from model.common.errors import Paused
from tasks.jobs.faults import JobFailed, JobsFailed
from tasks.project import signals


class Line(Protocol):
    """The jobs that wait, in the order of its choice."""

    def take(self) -> str | None:
        """The next job to start now; None while none may start before another has ended."""
        ...

    def ended(self, name: str, outcome: Any) -> Any:
        """A job has ended with its task's result or failure; gives what counts of it (None where it starts again)."""
        ...


class Names:
    """A line of names: `num_slots` at a time, in their order."""

    def __init__(self, names: Sequence[str], num_slots: int) -> None:
        self._names = list(reversed(names))
        self._num_free = num_slots

    def take(self) -> str | None:
        """The next name, while a slot is free."""
        if not self._names or not self._num_free:
            return None
        self._num_free -= 1
        return self._names.pop()

    def ended(self, name: str, outcome: Any) -> Any:
        """Its slot is free."""
        self._num_free += 1
        return outcome


def fan_out(stage: str, run_job: Task[Any, Any], line: Line, num_slots: int) -> None:
    """Run `run_job(name)` for every name of the line, at most `num_slots` at a time; one that fails leaves the others
    alone.

    Raises:
        Paused: the run was asked to stop.
        JobsFailed: some failed for good; the message names each.
    """
    failures: list[JobFailed] = []
    paused = False
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    with ThreadPoolTaskRunner[Any](max_workers=num_slots) as runner:
        running: dict[str, Any] = {}
        while True:
            while not signals.requested.is_set() and (name := line.take()) is not None:
                running[name] = runner.submit(run_job, {"name": name})
                running[name].add_done_callback(lambda _, name=name: ends.put(name))
            if not running:
                break
            name = ends.get()
            outcome = line.ended(name, running.pop(name).result(raise_on_failure=False))
            if isinstance(outcome, JobFailed):
                failures.append(outcome)
            elif isinstance(outcome, Paused):
                paused = True
            elif isinstance(outcome, BaseException):
                signals.requested.set()  # an error of ours: the others are told to save
                failure = outcome
                while running:
                    running.pop(ends.get())
                raise failure
    if paused or signals.requested.is_set():
        raise Paused(f"{stage} is to be continued")
    if failures:
        raise JobsFailed(stage, failures)
