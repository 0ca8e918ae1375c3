"""An unexpected error in one job stops the others, and is what the run fails with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prefect import flow

from flows.stage_flow import cancelled_when_stopped, fan_out
from tasks.prefect_tasks import step
from tasks.project import signals

pytestmark = pytest.mark.slow


class Jobs:
    """A queue of two jobs that may run at the same time."""

    def __init__(self) -> None:
        self._names = ["breaks", "waits"]

    def is_waiting(self) -> bool:
        return False

    def take(self) -> str | None:
        return self._names.pop(0) if self._names else None

    def ended(self, name: str, outcome: Any) -> Any:
        return outcome


@pytest.fixture
def server() -> Iterator[None]:
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


def test_a_bug_is_shown_and_not_a_stop(server: None) -> None:
    ended = []

    @step(name="job")
    def run_job(name: str) -> None:
        if name == "breaks":
            raise ZeroDivisionError("a bug")
        ended.append(signals.requested.wait(60))

    @flow(name="stage")
    @cancelled_when_stopped
    def stage() -> None:
        fan_out("stage", run_job, Jobs(), 2)

    signals.requested.clear()
    with pytest.raises(ZeroDivisionError, match="a bug"):
        stage()
    assert ended == [True], "the other job was asked to stop"
    assert not signals.requested.is_set()
