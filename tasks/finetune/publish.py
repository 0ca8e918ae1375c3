"""Output of the fine-tuning stage, assembled from the jobs' results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.common.files import write_json
from model.common.run_dir import RunDir
from tasks.finetune.plan import Group, best_of
from tasks.finetune.results import copy_result, model_of
from tasks.finetune.scheduler import JobScheduler
from tasks.jobs.supervision import copy_tree

Out = dict[str, Any]


def assemble(scheduler: JobScheduler, out_dir: Path) -> None:
    """Write out_dir/<encoder>/<benchmark>/{metrics.json, jobs/<digest>/, model/}.

    Ensemble members keep their raw outputs, so that an ensemble with more seeds can reuse them.
    """
    ensembles = {one.group.key: one for one in scheduler.ensembles()}
    for group in scheduler.groups:
        found = [(one, result) for one in group.jobs if (result := scheduler.result(one)) is not None]
        best = best_of(group.jobs, scheduler.result)
        model_dir = model_of(best, scheduler.published_dir) if best is not None else None
        if best is None or model_dir is None:
            continue  # every job failed, or the best job failed when it ran again for its model
        target = RunDir(out_dir.joinpath(*group.key))
        ensemble = ensembles.get(group.key)
        members = {one.digest for one in ensemble.members} if ensemble is not None else set()
        for one in (*group.jobs, *group.pruned):
            if scheduler.result(one) is not None:
                copy_result(one, scheduler.published_dir, target.path / "jobs" / one.digest, one.digest in members)
        copy_tree(model_dir, target.model)
        metrics: Out = {
            "encoder": group.encoder.name,
            "benchmark": group.benchmark,
            "kind": group.encoder.kind,
            "best": best.digest,
            "jobs": sorted((result for _, result in found), key=lambda result: result["digest"]),
        }
        if best.job.own is not None:
            metrics["row"] = best.job.own.model_dump(mode="json")
        if group.after:
            metrics["after"] = list(group.after)
        if scheduler.planner.params.prune is not None:
            pruned = [result for one in group.pruned if (result := scheduler.result(one)) is not None]
            metrics["pruned"] = sorted(pruned, key=lambda result: result["digest"])
        if ensemble is not None and scheduler.result(ensemble) is not None:
            metrics["ensemble"] = scheduler.result(ensemble)
        write_json(target.metrics, metrics)


def describe(scheduler: JobScheduler) -> Out:
    """Content of plan.json: encoders, benchmarks, their dependencies, and pruned grid points."""
    planner = scheduler.planner
    plan: Out = {
        "encoders": [{"name": encoder.name, "kind": encoder.kind} for encoder in planner.encoders],
        "benchmarks": planner.benchmarks,
    }
    after = {group.benchmark: list(group.after) for group in scheduler.groups if group.after}
    if after:
        plan["after"] = after
    if planner.params.prune is not None:
        plan["prune"] = planner.params.prune.model_dump()
        plan["pruned"] = [_pruned(group) for group in scheduler.groups if group.pruned]
    return plan


def _pruned(group: Group) -> Out:
    varied = sorted({one.digest: one.job.recipe.model_dump(mode="json") for one in group.pruned}.items())
    return {
        "encoder": group.encoder.name,
        "benchmark": group.benchmark,
        "jobs": [digest for digest, _ in varied],
        "recipes": [recipe for _, recipe in varied],
    }
