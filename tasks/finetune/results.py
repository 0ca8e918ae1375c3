"""Results of fine-tuning jobs and ensembles, in their run directories or in the published output.

An ensemble is the mean output on dev over the seeds of the selected recipe, scored like a single run. It is a separate
job, identified by its members. It reads their outputs and trains nothing. It is reported next to the single runs and
never published as the best model.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.common.errors import Paused
from model.common.files import atomic_directory, digest_of, read_json, write_json
from model.common.ownership import claim, newest_owner
from model.common.run_dir import RunDir
from model.common.state_files import read_state
from model.finetune.job import EnsembleJob, Job, Member
from tasks.cluster.node_pool import Node
from tasks.dvc.earlier_outputs import EarlierOutputs
from tasks.finetune.plan import Group, PlannedFinetune
from tasks.jobs.local_launcher import JobEnd, WorkerPool
from tasks.jobs.supervision import run_attempt, supervise, watch_memory
from tasks.project.progress import duration
from tasks.stats.selection import RunResult, select

MIN_MEMBERS = 2


@dataclass(frozen=True)
class PlannedEnsemble:
    """The ensemble of a group whose jobs have all finished."""

    group: Group
    members: tuple[PlannedFinetune, ...]
    digest: str
    run_dir: RunDir
    cost: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.group.encoder.name}/{self.group.benchmark}/ensemble of {len(self.members)}"


Work = PlannedFinetune | PlannedEnsemble


def plan_ensemble(
    group: Group, result: Callable[[PlannedFinetune], dict[str, Any] | None], runs_dir: Path
) -> PlannedEnsemble | None:
    """Plan the ensemble of the chosen recipe's runs that learned something.

    Returns:
        None while a job has no result, and if there are fewer than two.
    """
    results = [result(one) for one in group.jobs]
    found = [RunResult.parse(one, "result.json") for one in results if one is not None]
    if not group.is_decided or len(found) < len(group.jobs):
        return None
    chosen = {run.digest for run in select(found).usable}
    members = tuple(sorted((one for one in group.jobs if one.digest in chosen), key=lambda one: one.digest))
    if len(members) < MIN_MEMBERS:
        return None
    digest = digest_of({"ensemble": [one.digest for one in members]})
    return PlannedEnsemble(group, members, digest, RunDir(runs_dir / f"{'-'.join(group.key)}-{digest}"))


def finished(work: Work, published_dir: Path) -> dict[str, Any] | None:
    """Return the result of a job or an ensemble from its run directory or the published output, if it has one."""
    found = work.run_dir.read_result(work.digest, with_files=True)
    if found is not None:
        return found
    if isinstance(work, PlannedFinetune):
        return _published(work, published_dir).read_result(work.digest)
    path = RunDir(published_dir.joinpath(*work.group.key)).metrics
    published = read_json(path).get("ensemble") if path.exists() else None
    return published if published and published["digest"] == work.digest else None


def take_result(planned: PlannedFinetune, earlier: EarlierOutputs) -> dict[str, Any] | None:
    """Copy a job's files from an earlier output to its run directory, and return the result; None if there is none."""
    folder = f"{planned.job.encoder_name}/{planned.job.benchmark}/jobs/{planned.digest}"
    files = earlier.find(folder, f"{folder}/result.json", lambda result: result["digest"] == planned.digest)
    if files is None:
        return None
    if earlier.may_write:
        earlier.copy(files, planned.run_dir.path)  # the result last
    return earlier.read(files["result.json"])


def take_model(planned: PlannedFinetune, earlier: EarlierOutputs) -> bool:
    """Copy a job's model from an earlier output to its run directory; False if none has it."""
    folder = f"{planned.job.encoder_name}/{planned.job.benchmark}"
    files = earlier.find(f"{folder}/model", f"{folder}/metrics.json", lambda found: found["best"] == planned.digest)
    if files is None:
        return False
    if earlier.may_write:
        with atomic_directory(planned.run_dir.model) as partial:
            earlier.copy(files, partial)
        if planned.run_dir.read_result(planned.digest) is None:  # a model without its result does not count
            take_result(planned, earlier)
    return True


def run_one(
    planned: PlannedFinetune, published_dir: Path, pool: WorkerPool | Node, device: str | None, stop: threading.Event
) -> dict[str, Any]:
    """Run a job on a warm worker of this machine or of a node, or its ranks in new processes there.

    Raises what `tasks.jobs.supervision.supervise` raises.
    """
    job = planned.job
    if planned.source is not None:
        start = model_of(planned.source, published_dir)
        assert start is not None, "a job starts after its source model exists"
        job = job.model_copy(update={"encoder_dir": start})
    return _run(planned, job, pool, stop, device)


def run_ensemble(
    planned: PlannedEnsemble, published_dir: Path, pool: WorkerPool | Node, stop: threading.Event
) -> dict[str, Any]:
    """Score an ensemble on a warm worker, as `run_one` runs a job, and raise what it raises."""
    files = [(one, outputs_of(one, published_dir)) for one in planned.members]
    members = [Member(digest=one.digest, seed=one.job.seed, outputs=path) for one, path in files if path is not None]
    assert len(members) == len(files), "members whose outputs are missing run first"
    job = EnsembleJob(
        digest=planned.digest,
        run_dir=planned.run_dir.path,
        name=planned.name,
        job=planned.members[0].job,
        members=members,
    )
    return _run(planned, job, pool, stop)


def _run(
    work: Work, job: Job | EnsembleJob, pool: WorkerPool | Node, stop: threading.Event, device: str | None = None
) -> dict[str, Any]:
    job_path, run_dir = work.run_dir.finetune_config, work.run_dir
    num_ranks = job.machine.num_devices if isinstance(job, Job) else 1

    def attempt() -> JobEnd:
        document = job.model_copy(update={"attempt": _claim(run_dir, pool)}).model_dump(mode="json")
        if isinstance(pool, Node):
            return pool.run("model.finetune", document, job_path, run_dir, num_ranks=num_ranks, device=device)
        write_json(job_path, document)
        return watch_memory(
            lambda: run_attempt(
                "model.finetune", work.digest, job_path, run_dir, pool, stop, num_ranks=num_ranks, device=device
            )
        )

    return supervise(work.name, work.digest, run_dir, attempt, stop)


def _claim(run_dir: RunDir, pool: WorkerPool | Node) -> int:
    """Own the run directory of a job that runs on a node, or did before; return the number of the attempt."""
    before = newest_owner(run_dir.path)
    if before is None and not isinstance(pool, Node):
        return 0  # no process on another machine can have this job
    launcher, job_id = ("pool", pool.name) if isinstance(pool, Node) else ("local", str(os.getpid()))
    owner = claim(run_dir.path, before.attempt if before is not None else 0, launcher, job_id)
    if owner is None:
        raise Paused(f"{run_dir.path}: another process has just started this job; run the same command again")
    return owner.attempt


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
    places = (planned.run_dir, _published(planned, published_dir))
    return next((one.outputs for one in places if one.outputs.is_file() and one.read_result(planned.digest)), None)


def copy_result(planned: PlannedFinetune, published_dir: Path, target: Path, with_outputs: bool) -> None:
    """Copy the published files of a job into the new directory `target`."""
    source = planned.run_dir
    if not source.read_result(planned.digest):
        source = _published(planned, published_dir)
    outputs = outputs_of(planned, published_dir) if with_outputs else None
    target.mkdir(parents=True)
    for path in (source.result, source.predictions, source.errors, outputs):
        if path is not None and path.exists():
            shutil.copyfile(path, target / path.name)


def _published(planned: PlannedFinetune, published_dir: Path) -> RunDir:
    return RunDir(published_dir / planned.job.encoder_name / planned.job.benchmark / "jobs" / planned.digest)


def headline(result: Mapping[str, Any]) -> str:
    """Return the main score of a result, such as "accuracy 57.8"."""
    return f"{result['headline']['metric']} {result['headline']['value']:.1f}"


def summary(result: Mapping[str, Any], run_dir: RunDir) -> str:
    """Describe a finished job in one line."""
    seconds = read_state(run_dir.timing).get("seconds")
    return headline(result) if seconds is None else f"{headline(result)}, {duration(seconds)}"  # an ensemble has none
