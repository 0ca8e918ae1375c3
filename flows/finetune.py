"""The fine-tuning stage: a fan-out of jobs over warm workers, one per (encoder, benchmark, recipe, seed)."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from prefect import flow

from flows.fanout import fan_out
from flows.stage import StageRun, stage_run
from model.benchmarks.table import in_order
from model.files import write_json
from tasks import stop
from tasks.faults import JobsFailed
from tasks.finetune import (
    BestModels,
    Planned,
    assemble,
    best_without_model,
    encoder_kind,
    finished,
    forget,
    plan_jobs,
    run_one,
)
from tasks.jobs import shed
from tasks.launch.pool import WorkerPool
from tasks.launch.slots import slots
from tasks.steps import job
from tasks.workspace import require_space


@flow(name="finetune")
def finetune(allow_missing: bool = False) -> None:
    """Fine-tune every encoder on every benchmark of params.yaml; jobs with a result are not run again.

    With `allow_missing`, what has finished is published though jobs have failed (and the failure still raised).
    """
    with stage_run("finetune") as run:
        pretrain_dir = run.project.build / "pretrain"
        encoders = [path.name for path in sorted(pretrain_dir.iterdir()) if (path / "metrics.json").exists()]
        planned = plan_jobs(
            run.params.finetune, encoders, pretrain_dir, run.project.data, run.runs_dir, run.snapshot.version
        )
        best = BestModels()
        results = [(one, finished(one, run.published)) for one in planned]
        for one, result in results:
            if result is not None:
                best.offer(one, result)
        failure: JobsFailed | None = None
        try:
            _run_jobs(run, [one for one, result in results if result is None], len(planned), best)
        except JobsFailed as error:
            if not allow_missing:
                raise
            failure = error
        again = best_without_model(planned, run.published)
        for one in again:
            forget(one)
        _run_jobs(run, again, len(again), BestModels())
        assemble(planned, run.published, run.out_dir)
        plan = {
            "encoders": [{"name": name, "kind": encoder_kind(pretrain_dir / name)} for name in encoders],
            "benchmarks": in_order({one.job.benchmark for one in planned}),
        }
        write_json(run.out_dir / "plan.json", plan)
    for one in planned:
        shed(one.run_dir)
    if failure is not None:
        raise failure


def _run_jobs(run: StageRun, todo: Sequence[Planned], num_all: int, best: BestModels) -> None:
    """Run jobs side by side on warm workers."""
    if not todo:
        return
    by_name = {one.name: one for one in todo}
    params = run.params.finetune
    num_slots, devices = slots(params.num_workers, params.machine.accelerator)
    bytes_each = max((one.job.encoder_dir / "model.safetensors").stat().st_size for one in todo)
    groups = len({(one.job.encoder_name, one.job.benchmark) for one in todo})
    require_space(run.project.build, bytes_each * (groups + num_slots), "fine-tuning")
    bar = run.bars.bar("finetune")
    done = num_all - len(todo)
    counting = threading.Lock()
    bar.update(done, num_all)

    with WorkerPool(num_slots, run.runs_dir / "workers.log", devices) as pool:

        @job(name="fine-tune", task_run_name="{name}")
        def fine_tune(name: str) -> None:
            nonlocal done
            result = _fine_tune(run, by_name[name], pool)
            best.offer(by_name[name], result)
            with counting:
                done += 1
                bar.update(done, num_all, f"{name} {result['headline']['metric']} {result['headline']['value']:.1f}")

        fan_out("finetune", fine_tune, list(by_name), num_slots)


def _fine_tune(run: StageRun, planned: Planned, pool: WorkerPool) -> dict:
    """Run one job, with its MLflow run."""
    job, run_dir = planned.job, planned.run_dir
    tags = {
        "cloze.stage": "finetune",
        "cloze.encoder": job.encoder_name,
        "cloze.benchmark": job.benchmark,
        "cloze.seed": str(job.seed),
    }
    run.tracking.begin(job.digest, planned.name, tags, job.model_dump(mode="json"), run_dir / "journal.jsonl")
    outcome, metrics = "FAILED", {}
    try:
        result = run_one(planned, pool, stop.requested)
        outcome = "FINISHED"
        metrics = {f"dev/{name}": value for name, value in result["scores"].items()}
        return result
    finally:
        if stop.requested.is_set() and outcome == "FAILED":
            outcome = "KILLED"
        names = {
            "JOB.json": "config",
            "result.json": "",
            "predictions.jsonl": "predictions",
            "log.txt": "log",
        }
        run.tracking.end(job.digest, outcome, metrics, [(run_dir / name, where) for name, where in names.items()])
