"""The table of `cloze logs`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from model.common.files import write_json
from model.common.run_dir import RunDir
from tasks.jobs.job_records import job_table, read_jobs
from tasks.project.project import Project
from tasks.project.workspace import run_lock


def job(project: Project, folder: str, minute: int, **files: Any) -> RunDir:
    """Leave a run directory whose files were last changed at `minute` of 2001-09-09 01:00 UTC."""
    run_dir = RunDir(project.runs / folder)
    for name, content in files.items():
        write_json(getattr(run_dir, name), content)
    run_dir.log.write_text("started\n")
    for path in run_dir.path.iterdir():
        os.utime(path, (999_997_200 + 60 * minute,) * 2)
    return run_dir


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path, tmp_path)
    name = "pretrained/rte/lr=5e-4/seed=1"
    headline = {"headline": {"metric": "accuracy", "value": 57.81}}
    job(project, "finetune/a-1", 3, finetune_config={"name": name}, result=headline, timing={"seconds": 12.6})
    running = {"state": "running", "step": 45, "num_steps": 100, "loss": 4.128}
    job(project, "pretrain/b-2", 5, pretrain_config={"name": "pretrained"}, status=running)
    final = {"final": {"heldout/loss": 3.214}}
    job(project, "pretrain/c-3", 1, pretrain_config={"name": "scratch"}, result=final, timing={"seconds": 1234.5})
    failed = {"state": "failed", "message": "no", "fault": "user"}
    job(project, f"finetune/{'x' * 60}-4", 4, finetune_config={}, status=failed)
    (project.runs / "finetune" / "not-started").mkdir()
    return project


def test_jobs_are_listed_newest_first(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    __import__("time").tzset()
    header, *rows = [line.split() for line in job_table(read_jobs(project), None)]
    assert header == ["job", "state", "score", "seconds", "when"]
    assert rows == [
        ["pretrain/pretrained", "interrupted", "loss", "4.13", "09-09", "01:05"],
        [f"{'x' * 60}-4", "failed", "09-09", "01:04"],
        ["pretrained/rte/lr=5e-4/seed=1", "done", "57.8", "13", "09-09", "01:03"],
        ["pretrain/scratch", "done", "loss", "3.21", "1,234", "09-09", "01:01"],
    ]
    with run_lock(project, "cloze run"):
        assert read_jobs(project)[0].state == "45%"


def test_the_table_fits_80_columns(project: Project) -> None:
    lines = job_table(read_jobs(project), 80)
    assert max(map(len, lines)) <= 80
    assert "xxx…  failed" in lines[2]
    assert "pretrained/rte/lr=5e-4/seed=1  " in lines[3]
