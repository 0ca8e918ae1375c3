"""The fine-tuning stage: runs one job per (encoder, benchmark, recipe, seed) on a pool of preloaded workers."""

from __future__ import annotations

from typing import Any

from flows.fanout import fan_out
from flows.stage_flow import StageRun, stage_flow, stage_run
from model.benchmarks.custom_task import row_of
from model.benchmarks.sources import files_of
from model.common.files import write_json
from tasks.dvc.stage_snapshot import check_declared
from tasks.finetune.plan import Planner, find_encoders, weight_bytes
from tasks.finetune.results import PlannedEnsemble, Work, run_ensemble, run_one
from tasks.finetune.scheduler import JobQueue, JobScheduler, MemoryEstimator, assemble, describe
from tasks.jobs.resources import Allocation, find_resources
from tasks.jobs.supervision import JobsFailed
from tasks.jobs.worker_pool import WorkerPool
from tasks.prefect_tasks import packed_job
from tasks.project import signals
from tasks.project.workspace import require_space


@stage_flow("finetune")
def finetune(allow_missing: bool = False) -> None:
    """Fine-tune every encoder on every benchmark in params.yaml; jobs that have a result are skipped.

    Args:
        allow_missing: Publish the finished jobs even if others failed; the failure is raised afterwards.
    """
    with stage_run("finetune") as run:
        params = run.params.finetune
        for encoder in params.encoders:
            check_declared(run.project, "finetune", run.project.data / encoder.path)
        for name in params.tasks:
            files = files_of(row_of(name, run.project.data), run.project.data)
            for path in (run.project.data / name, *(path for _, path in files)):
                check_declared(run.project, "finetune", path)
        encoders = find_encoders(params.encoders, run.project.build / "pretrain", run.project.data)
        planner = Planner(params, encoders, run.project.data, run.runs_dir, run.snapshot.version)
        scheduler = JobScheduler(planner, run.runs_dir, run.published)
        failure: JobsFailed | None = None
        try:
            _run_jobs(run, scheduler)
        except JobsFailed as error:
            if not allow_missing:
                raise
            failure = error
        assemble(scheduler, run.out_dir)
        write_json(run.out_dir / "plan.json", describe(scheduler))
    for one in scheduler.jobs():
        one.run_dir.remove_artifacts(keep_model=planner.wants_seeds_of(one.job.benchmark))
    if failure is not None:
        raise failure


def _run_jobs(run: StageRun, scheduler: JobScheduler) -> None:
    scheduler.tidy()
    if not scheduler.ready():
        return
    params = run.params.finetune
    resources = find_resources(params.machine, params.num_workers, params.memory_bytes, params.jobs_per_device)
    largest = max((weight_bytes(encoder.folder) for encoder in scheduler.planner.encoders), default=0)
    require_space(run.project.build, largest * (len(scheduler.groups) + resources.num_jobs), "fine-tuning")
    bar = run.add_bar("finetune")
    bar.update(*scheduler.progress())

    def show(name: str, result: dict[str, Any]) -> None:
        headline = result["headline"]
        bar.update(*scheduler.progress(), f"{name} {headline['metric']} {headline['value']:.1f}")

    queue = JobQueue(scheduler, resources, MemoryEstimator(), show)

    with WorkerPool(run.runs_dir / "workers.log") as pool:

        @packed_job(name="fine-tune", task_run_name="{name}")
        def fine_tune(name: str) -> dict[str, Any]:
            return _run_job(run, *queue.work(name), pool)

        fan_out("finetune", fine_tune, queue, resources.num_jobs)


def _run_job(run: StageRun, work: Work, allocation: Allocation, pool: WorkerPool) -> dict[str, Any]:
    job = work.members[0].job if isinstance(work, PlannedEnsemble) else work.job
    tags = {
        "cloze.stage": "finetune",
        "cloze.encoder": job.encoder_name,
        "cloze.benchmark": job.benchmark,
        "cloze.seed": "ensemble" if isinstance(work, PlannedEnsemble) else str(job.seed),
    }
    artifacts = [
        (work.run_dir.finetune_config, "config"),
        (work.run_dir.result, ""),
        (work.run_dir.predictions, "predictions"),
        (work.run_dir.errors, "predictions"),
        (work.run_dir.log, "log"),
    ]
    config = job.model_dump(mode="json")
    with run.track_job(work.digest, work.name, tags, config, work.run_dir.metrics_log, artifacts) as metrics:
        if isinstance(work, PlannedEnsemble):
            result = run_ensemble(work, run.published, pool, signals.requested)
        else:
            result = run_one(work, run.published, pool, allocation.device, signals.requested)
        metrics.update({f"dev/{name}": value for name, value in result["scores"].items()})
    return result
