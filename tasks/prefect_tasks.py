"""The steps as Prefect tasks: thin faces over the plain functions of this package.

Apart from them, so that `cloze run` with nothing to do, and the tests of the plain functions, need no Prefect.
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
    """A run's name on the page: what it is and when it began."""
    return lambda: f"{name} {time.strftime('%Y-%m-%d %H:%M')}"


def _may_retry(failure: object, run_count: int) -> bool:
    return isinstance(failure, JobFailed) and run_count <= FAULTS[failure.fault].retries


def worth_a_retry(_task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether tasks.jobs.supervision allows one more attempt at a failed job."""
    return _may_retry(state.result(raise_on_failure=False), run.run_count)


def worth_a_retry_beside_others(_task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """The same for jobs that share a machine: one that lacked memory is tried again by its line, alone."""
    failure = state.result(raise_on_failure=False)
    return getattr(failure, "fault", "") != "memory" and _may_retry(failure, run.run_count)


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
