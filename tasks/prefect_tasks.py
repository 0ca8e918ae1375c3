"""The steps as Prefect tasks, separate from the plain functions that they call, which need no Prefect.

Prefect's own caching is off: DVC's and the jobs' result files are the two caches. Inputs and results are small records,
never tensors.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.tasks import Task

from tasks.jobs.supervision import FAULTS, JobFailed

step: Any = functools.partial(task, cache_policy=NO_CACHE, persist_result=False)


def dated(name: str) -> Callable[[], str]:
    """Return a function that names a run: what it is and when it began."""
    return lambda: f"{name} {time.strftime('%Y-%m-%d %H:%M')}"


def worth_a_retry(_task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether tasks.jobs.supervision allows one more attempt at a failed job."""
    failure = state.result(raise_on_failure=False)
    return isinstance(failure, JobFailed) and run.run_count <= FAULTS[failure.fault].retries


def worth_a_retry_beside_others(_task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """The same for jobs that share a machine: the queue repeats a job that ran out of memory, alone."""
    failure = state.result(raise_on_failure=False)
    return getattr(failure, "fault", "") != "memory" and worth_a_retry(_task, run, state)


job: Any = functools.partial(
    step,
    retries=max(fault.retries for fault in FAULTS.values()),
    retry_delay_seconds=1,
    retry_condition_fn=worth_a_retry,
)
packed_job: Any = functools.partial(job, retry_condition_fn=worth_a_retry_beside_others)


@step(name="cached", task_run_name="{stage}")
def cached(stage: str) -> State[Any]:
    """A stage that DVC says is up to date."""
    return Completed(name="Cached", message=f"{stage} is up to date")


@step(name="record", task_run_name="record {stage}")
def record(stage: str, commit: Callable[[], None]) -> None:
    """`dvc commit` of a finished stage."""
    commit()
