"""What to do when a training job fails: a table of faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A kind of failure: how often the job is tried again, after how long, and what it says to a person."""

    retries: int
    wait_seconds: float
    meaning: str


# Keyed by status.json's "fault", or by "killed" and "lost" where the process left none.
FAULTS = {
    "user": Fault(0, 0, "a mistake in the data or the parameters"),
    "non-finite": Fault(0, 0, "the loss is not a number: lower the learning rate"),
    "hopeless": Fault(0, 0, "no good end was to be expected: lower the learning rate, or see give_up_above"),
    "internal": Fault(1, 0, "an error in the program"),
    "memory": Fault(1, 5, "not enough memory: fewer workers or a smaller batch"),
    "killed": Fault(2, 1, "killed by a signal"),
    "lost": Fault(2, 1, "its worker is gone"),
}


class JobFailed(Exception):
    """A job failed for good. `name` is the job, `fault` a key of FAULTS, `message` one line."""

    def __init__(self, name: str, fault: str, message: str, log: str) -> None:
        super().__init__(f"{name}: {message or FAULTS[fault].meaning} (log: {log})")
        self.name = name
        self.fault = fault


class JobsFailed(Exception):
    """Some jobs of a stage failed for good; the others have finished and keep their results."""

    def __init__(self, stage: str, failures: Sequence[JobFailed]) -> None:
        num = len(failures)
        lines = "".join(f"\n  {failure}" for failure in failures)
        super().__init__(f"{stage}: {num} job{'s' if num > 1 else ''} failed:{lines}")
        self.failures = list(failures)

    @property
    def exit_code(self) -> int:
        """2 when every failure is a mistake in what the user gave, else 1."""
        return 2 if all(failure.fault == "user" for failure in self.failures) else 1
