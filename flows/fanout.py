"""Run many jobs concurrently as Prefect tasks, and collect their failures."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, Protocol

from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task

from model.common.errors import Paused
from tasks.jobs.supervision import JobFailed, JobsFailed
from tasks.project import signals


class FanOutQueue(Protocol):
    """Waiting jobs, in an order that the queue chooses."""

    def take(self) -> str | None:
        """Return the next job to start now, or None if no job may start before another has ended."""
        ...

    def ended(self, name: str, outcome: Any) -> Any:
        """Take note of a job's result or failure.

        Returns:
            The outcome that counts; None if the job will start again.
        """
        ...


class NameQueue:
    """A first-in, first-out queue of names that starts at most `num_slots` at a time."""

    def __init__(self, names: Sequence[str], num_slots: int) -> None:
        self._names = list(reversed(names))
        self._num_free = num_slots

    def take(self) -> str | None:
        """Return the next name if a slot is free."""
        if not self._names or not self._num_free:
            return None
        self._num_free -= 1
        return self._names.pop()

    def ended(self, name: str, outcome: Any) -> Any:
        """Free the job's slot."""
        self._num_free += 1
        return outcome


def fan_out(stage: str, run_job: Task[Any, Any], jobs: FanOutQueue, num_slots: int) -> None:
    """Run `run_job(name)` for every name in the queue, at most `num_slots` at a time.

    A job that fails does not stop the others.

    Raises:
        Paused: the run was asked to stop.
        JobsFailed: some jobs failed for good; the message names each.
    """
    failures: list[JobFailed] = []
    paused = False
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    with ThreadPoolTaskRunner[Any](max_workers=num_slots) as runner:
        running: dict[str, Any] = {}
        while True:
            while not signals.requested.is_set() and (name := jobs.take()) is not None:
                running[name] = runner.submit(run_job, {"name": name})
                running[name].add_done_callback(lambda _, name=name: ends.put(name))
            if not running:
                break
            name = ends.get()
            outcome = jobs.ended(name, running.pop(name).result(raise_on_failure=False))
            if isinstance(outcome, JobFailed):
                failures.append(outcome)
            elif isinstance(outcome, Paused):
                paused = True
            elif isinstance(outcome, BaseException):
                signals.requested.set()  # a bug in Cloze: the other jobs save their state and stop
                while running:
                    running.pop(ends.get())
                raise outcome
    if paused or signals.requested.is_set():
        raise Paused(f"{stage} was interrupted")
    if failures:
        raise JobsFailed(stage, failures)
