"""What a job has left: in its own folder, or in the published output."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

from model.common.files import read_json, write_json
from tasks.finetune.plan import Planned
from tasks.jobs.faults import JobFailed
from tasks.jobs.jobs import result_of, supervise
from tasks.jobs.local_launcher import LOG
from tasks.jobs.resources import out_of_memory_kills
from tasks.jobs.worker_pool import WorkerPool

OUTPUTS = "outputs.safetensors"
_RESULT_FILES = ("result.json", "predictions.jsonl", "errors.json")


def finished(planned: Planned, published_dir: Path) -> dict[str, Any] | None:
    """The result of a job that has one, in its folder or in the published output."""
    found = result_of(planned.run_dir, planned.digest)
    if found is None:
        found = result_of(_published(planned, published_dir), planned.digest)
    return found


def run_one(
    planned: Planned, published_dir: Path, pool: WorkerPool, device: str | None, stop: threading.Event
) -> dict[str, Any]:
    """Run a job on a warm worker; see `tasks.jobs.jobs.supervise` for what it raises. One that the system has killed
    for want of memory failed for that."""
    job = planned.job
    if planned.source is not None:
        start = model_of(planned.source, published_dir)
        assert start is not None, "a job waits for the model that it starts from"
        job = job.model_copy(update={"encoder_dir": start})
    job_path = planned.run_dir / "JOB.json"
    write_json(job_path, job.model_dump(mode="json"))
    attempt = lambda: pool.run(planned.digest, job_path, stop, device)  # noqa: E731 (named for what it is)
    kills = out_of_memory_kills()
    try:
        return supervise(planned.name, planned.digest, planned.run_dir, attempt, stop)
    except JobFailed as error:
        if error.fault != "killed" or out_of_memory_kills() == kills:
            raise
        log = os.path.relpath(planned.run_dir / LOG)
        raise JobFailed(planned.name, "memory", "killed by the system, whose memory was full", log) from None


def forget(run_dir: Path) -> None:
    """Drop a job's result so that it runs again."""
    (run_dir / "result.json").unlink(missing_ok=True)


def model_of(planned: Planned, published_dir: Path) -> Path | None:
    """The folder of a job's fine-tuned model; None when only another's was kept."""
    if (planned.run_dir / "model").is_dir() and result_of(planned.run_dir, planned.digest):
        return planned.run_dir / "model"
    published = published_dir / planned.job.encoder_name / planned.job.benchmark
    if (published / "model").is_dir() and read_json(published / "metrics.json")["best"] == planned.digest:
        return published / "model"
    return None


def outputs_of(planned: Planned, published_dir: Path) -> Path | None:
    """The file of a job's outputs on dev; None when it is not there."""
    for folder in (planned.run_dir, _published(planned, published_dir)):
        if (folder / OUTPUTS).is_file() and result_of(folder, planned.digest):
            return folder / OUTPUTS
    return None


def copy_result(planned: Planned, published_dir: Path, target: Path, with_outputs: bool) -> None:
    """Copy what is published of a job into a new folder."""
    source = planned.run_dir if result_of(planned.run_dir, planned.digest) else _published(planned, published_dir)
    target.mkdir(parents=True)
    for name in _RESULT_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    outputs = outputs_of(planned, published_dir) if with_outputs else None
    if outputs is not None:
        shutil.copyfile(outputs, target / OUTPUTS)


def _published(planned: Planned, published_dir: Path) -> Path:
    return published_dir / planned.job.encoder_name / planned.job.benchmark / "jobs" / planned.digest
