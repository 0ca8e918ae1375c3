"""The stage's output, made of the jobs' results."""

from __future__ import annotations

from typing import Any

from model.common.files import write_json
from model.common.run_dir import RunDir
from tasks.finetune.plan import Group, best_of
from tasks.finetune.results import copy_result, model_of
from tasks.finetune.scheduler import Course
from tasks.jobs.jobs import copy_tree

Out = dict[str, Any]


def assemble(course: Course, out_dir: Any) -> None:
    """Put the output together: out_dir/<encoder>/<benchmark>/{metrics.json, jobs/<digest>/, model/}.

    Jobs of an ensemble come with their outputs, so that one of more seeds can be made of the published output.
    """
    ensembles = {one.group.key: one for one in course.ensembles()}
    for group in course.groups:
        found = [(one, result) for one in group.jobs if (result := course.result(one)) is not None]
        best = best_of(group.jobs, course.result)
        model_dir = model_of(best, course.published_dir) if best is not None else None
        if best is None or model_dir is None:
            continue  # every job has failed; or the best has to run again for its model, and failed
        target = RunDir(out_dir.joinpath(*group.key))
        ensemble = ensembles.get(group.key)
        members = {one.digest for one in ensemble.members} if ensemble is not None else set()
        for one in (*group.jobs, *group.pruned):
            if course.result(one) is not None:
                copy_result(one, course.published_dir, target.path / "jobs" / one.digest, one.digest in members)
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
        if course.planner.params.prune is not None:
            pruned = [result for one in group.pruned if (result := course.result(one)) is not None]
            metrics["pruned"] = sorted(pruned, key=lambda result: result["digest"])
        if ensemble is not None and course.result(ensemble) is not None:
            metrics["ensemble"] = course.result(ensemble)
        write_json(target.metrics, metrics)


def describe(course: Course) -> Out:
    """plan.json: the encoders and benchmarks of the output, what comes after what, and what was given up."""
    planner = course.planner
    plan: Out = {
        "encoders": [{"name": encoder.name, "kind": encoder.kind} for encoder in planner.encoders],
        "benchmarks": planner.benchmarks,
    }
    after = {group.benchmark: list(group.after) for group in course.groups if group.after}
    if after:
        plan["after"] = after
    if planner.params.prune is not None:
        plan["prune"] = planner.params.prune.model_dump()
        plan["pruned"] = [_given_up(group) for group in course.groups if group.pruned]
    return plan


def _given_up(group: Group) -> Out:
    varied = sorted({one.digest: one.job.recipe.model_dump(mode="json") for one in group.pruned}.items())
    return {
        "encoder": group.encoder.name,
        "benchmark": group.benchmark,
        "jobs": [digest for digest, _ in varied],
        "recipes": [recipe for _, recipe in varied],
    }
