"""Running many jobs side by side as Prefect tasks, and gathering how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task

from model.errors import Paused
from tasks.faults import JobFailed, JobsFailed


def fan_out(stage: str, run_job: Task[Any, Any], names: Sequence[str], num_slots: int) -> None:
    """Run `run_job(name)` for every name, `num_slots` at a time, in this order; one that fails leaves the others alone.

    Raises:
        Paused: the run was asked to stop.
        JobsFailed: some failed for good; the message names each.
    """
    with ThreadPoolTaskRunner[Any](max_workers=num_slots) as runner:
        futures = [runner.submit(run_job, {"name": name}) for name in names]
        outcomes = [future.result(raise_on_failure=False) for future in futures]
    failures: list[JobFailed] = []
    for outcome in outcomes:
        if isinstance(outcome, JobFailed):
            failures.append(outcome)
        elif isinstance(outcome, BaseException) and not isinstance(outcome, Paused):
            raise outcome
    if any(isinstance(outcome, Paused) for outcome in outcomes):
        raise Paused(f"{stage} is to be continued")
    if failures:
        raise JobsFailed(stage, failures)
