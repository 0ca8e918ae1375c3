from __future__ import annotations

import threading
from pathlib import Path

import pytest

from model.common.errors import Paused
from model.common.files import write_json
from model.common.run_dir import RunDir
from tasks.jobs.local_launcher import JobEnd
from tasks.jobs.supervision import FAULTS, JobFailed, JobsFailed, supervise


def ending(run_dir: Path, end: JobEnd, status: dict | None = None, result: dict | None = None):
    def attempt() -> JobEnd:
        if status is not None:
            write_json(run_dir / "status.json", status)
        if result is not None:
            write_json(run_dir / "result.json", result)
        return end

    return lambda: supervise("job", "d1", RunDir(run_dir), attempt, threading.Event())


def test_success_is_the_result_not_the_exit_code(tmp_path: Path) -> None:
    assert ending(tmp_path, JobEnd(1), result={"digest": "d1"})()["digest"] == "d1"


def test_a_result_of_another_job_is_none(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", {"digest": "d0"})
    assert RunDir(tmp_path).read_result("d1") is None
    with pytest.raises(JobFailed):
        ending(tmp_path, JobEnd(0))()


@pytest.mark.parametrize(
    ("end", "status", "fault"),
    [
        (JobEnd(2), {"state": "failed", "fault": "user", "message": "dev.tsv, row 3"}, "user"),
        (JobEnd(1), {"state": "failed", "fault": "non-finite"}, "non-finite"),
        (JobEnd(1), {"state": "failed", "fault": "of a later version"}, "internal"),
        (JobEnd(-9, signal=9), {"state": "running"}, "killed"),
        (JobEnd(1, fault="lost"), {"state": "running"}, "lost"),
        (JobEnd(1, fault="node"), {"state": "to be continued"}, "node"),
        (JobEnd(-9, signal=9, fault="memory"), {"state": "running"}, "memory"),
        (JobEnd(1), {"state": "running"}, "lost"),  # the rank that writes the status died under torchrun
        (JobEnd(1), None, "internal"),
    ],
)
def test_faults_are_told_apart(tmp_path: Path, end: JobEnd, status: dict | None, fault: str) -> None:
    with pytest.raises(JobFailed) as caught:
        ending(tmp_path, end, status)()
    assert caught.value.fault == fault
    assert fault in FAULTS


def test_a_job_that_saved_is_paused(tmp_path: Path) -> None:
    with pytest.raises(Paused):
        ending(tmp_path, JobEnd(0), {"state": "to be continued"})()


def test_failures_of_users_end_with_2() -> None:
    user, internal = JobFailed("a", "user", "m", "l"), JobFailed("b", "internal", "m", "l")
    assert JobsFailed("finetune", [user]).exit_code == 2
    assert JobsFailed("finetune", [user, internal]).exit_code == 1
    assert "2 jobs failed:\n  a: m (log: l)\n  b: m" in str(JobsFailed("finetune", [user, internal]))
