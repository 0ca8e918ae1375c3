"""Results of fine-tuning jobs, in their run directories or in the published output."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

from model.common.files import read_json, write_json
from model.common.run_dir import RunDir
from tasks.finetune.plan import PlannedFinetune
from tasks.jobs.resources import out_of_memory_kills
from tasks.jobs.supervision import JobFailed, supervise
from tasks.jobs.worker_pool import WorkerPool


def finished(planned: PlannedFinetune, published_dir: Path) -> dict[str, Any] | None:
    """Return a job's result from its run directory or the published output, if it has one."""
    found = planned.run_dir.read_result(planned.digest)
    if found is None:
        found = _published(planned, published_dir).read_result(planned.digest)
    return found


def run_one(
    planned: PlannedFinetune, published_dir: Path, pool: WorkerPool, device: str | None, stop: threading.Event
) -> dict[str, Any]:
    """Run a job on a warm worker; raises what `tasks.jobs.supervision.supervise` raises.

    A job that the kernel's out-of-memory killer ended fails with the fault `memory`.
    """
    job = planned.job
    if planned.source is not None:
        start = model_of(planned.source, published_dir)
        assert start is not None, "a job starts after its source model exists"
        job = job.model_copy(update={"encoder_dir": start})
    job_path = planned.run_dir.finetune_config
    write_json(job_path, job.model_dump(mode="json"))
    attempt = lambda: pool.run(planned.digest, job_path, stop, device)  # noqa: E731
    kills = out_of_memory_kills()
    try:
        return supervise(planned.name, planned.digest, planned.run_dir, attempt, stop)
    except JobFailed as error:
        if error.fault != "killed" or out_of_memory_kills() == kills:
            raise
        log = os.path.relpath(planned.run_dir.log)
        raise JobFailed(planned.name, "memory", "killed by the system, which ran out of memory", log) from None


def model_of(planned: PlannedFinetune, published_dir: Path) -> Path | None:
    """Return the directory of a job's fine-tuned model; None if the model was not kept."""
    if planned.run_dir.model.is_dir() and planned.run_dir.read_result(planned.digest):
        return planned.run_dir.model
    published = RunDir(published_dir / planned.job.encoder_name / planned.job.benchmark)
    if published.model.is_dir() and read_json(published.metrics)["best"] == planned.digest:
        return published.model
    return None


def outputs_of(planned: PlannedFinetune, published_dir: Path) -> Path | None:
    """Return the file with a job's outputs on dev; None if it is missing."""
    for found in (planned.run_dir, _published(planned, published_dir)):
        if found.outputs.is_file() and found.read_result(planned.digest):
            return found.outputs
    return None


def copy_result(planned: PlannedFinetune, published_dir: Path, target: Path, with_outputs: bool) -> None:
    """Copy the published files of a job into the new directory `target`."""
    source = planned.run_dir
    if not source.read_result(planned.digest):
        source = _published(planned, published_dir)
    files: list[Path | None] = [source.result, source.predictions, source.errors]
    if with_outputs:
        files.append(outputs_of(planned, published_dir))
    target.mkdir(parents=True)
    for path in files:
        if path is not None and path.exists():
            shutil.copyfile(path, target / path.name)


def _published(planned: PlannedFinetune, published_dir: Path) -> RunDir:
    return RunDir(published_dir / planned.job.encoder_name / planned.job.benchmark / "jobs" / planned.digest)
