"""Ensembles: the mean output on dev over the seeds of the selected recipe, scored like a single run.

An ensemble is a separate job, identified by its members. It reads their outputs and trains nothing. It is reported next
to the single runs and never published as the best model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.common.files import digest_of, read_json, write_json
from model.common.run_dir import RunDir
from model.finetune.job import EnsembleJob, Member
from tasks.finetune.plan import Group, PlannedFinetune
from tasks.finetune.results import outputs_of
from tasks.jobs.supervision import supervise
from tasks.jobs.worker_pool import WorkerPool
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
        """Name in messages and tables."""
        return f"{self.group.encoder.name}/{self.group.benchmark}/ensemble of {len(self.members)}/{self.digest[:6]}"


def plan_ensemble(
    group: Group, result: Callable[[PlannedFinetune], dict[str, Any] | None], runs_dir: Path
) -> PlannedEnsemble | None:
    """Plan the ensemble of the runs that the leaderboard shows for the group.

    Returns:
        None while a job has no result, and if fewer than two runs count.
    """
    results = [result(one) for one in group.jobs]
    found = [RunResult.parse(one, "result.json") for one in results if one is not None]
    if not group.is_decided or len(found) < len(group.jobs):
        return None
    chosen = {run.digest for run in select(found).runs}
    members = tuple(sorted((one for one in group.jobs if one.digest in chosen), key=lambda one: one.digest))
    if len(members) < MIN_MEMBERS:
        return None
    digest = digest_of({"ensemble": [one.digest for one in members]})
    return PlannedEnsemble(group, members, digest, RunDir(runs_dir / f"{'-'.join(group.key)}-{digest}"))


def ensemble_result(planned: PlannedEnsemble, published_dir: Path) -> dict[str, Any] | None:
    """Return the ensemble's result from its run directory or the published output, if it has one."""
    found = planned.run_dir.read_result(planned.digest)
    if found is None:
        path = RunDir(published_dir.joinpath(*planned.group.key)).metrics
        published = read_json(path).get("ensemble") if path.exists() else None
        found = published if published and published["digest"] == planned.digest else None
    return found


def run_ensemble(
    planned: PlannedEnsemble, published_dir: Path, pool: WorkerPool, stop: threading.Event
) -> dict[str, Any]:
    """Score an ensemble on a warm worker; raises what `tasks.jobs.supervision.supervise` raises."""
    files = [(one, outputs_of(one, published_dir)) for one in planned.members]
    members = [Member(digest=one.digest, seed=one.job.seed, outputs=path) for one, path in files if path is not None]
    assert len(members) == len(files), "members whose outputs are missing run first"
    job = EnsembleJob(digest=planned.digest, run_dir=planned.run_dir.path, job=planned.members[0].job, members=members)
    job_path = planned.run_dir.finetune_config
    write_json(job_path, job.model_dump(mode="json"))
    attempt = lambda: pool.run(planned.digest, job_path, stop)  # noqa: E731
    return supervise(planned.name, planned.digest, planned.run_dir, attempt, stop)
