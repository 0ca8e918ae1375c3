"""Scheduling of fine-tuning jobs: which have a result, which can start now, which models to keep; and the output.

The plan is recomputed whenever a job ends, so that jobs start as soon as their inputs exist. All decisions depend only
on results, so an interrupted run makes the same decisions when it resumes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from model.benchmarks.head_specs import HEAD_SPECS
from model.common.files import read_json, write_json
from model.common.run_dir import RunDir
from model.common.state_files import read_state
from model.config.finetuning import FeatureAdaptation
from tasks.dvc.earlier_outputs import EarlierOutputs
from tasks.finetune.plan import Group, PlannedFinetune, Planner, best_of, is_complete, weight_bytes
from tasks.finetune.results import (
    PlannedEnsemble,
    Work,
    copy_result,
    finished,
    headline,
    model_of,
    outputs_of,
    plan_ensemble,
    take_model,
    take_result,
)
from tasks.jobs.resources import Allocation, MemoryEstimate, Resources
from tasks.jobs.supervision import JobFailed, copy_tree
from tasks.project.progress import Bar

Out = dict[str, Any]
_BASE_BYTES = 800 * 2**20  # a process without its encoder
_COPIES = 5  # of the weights: parameters, gradients, two moments, the file being saved
_MOST_LOSSES = 3  # of a job's nodes, without a new checkpoint in between
_MARGIN = 1.1  # over the measured memory, since other seeds see other batches


class JobScheduler:
    """Decides which jobs of the fine-tuning stage run next. Not thread-safe.

    Args:
        earlier: earlier outputs, from which jobs take results and models that neither directory has.
    """

    def __init__(
        self, planner: Planner, runs_dir: Path, published_dir: Path, earlier: EarlierOutputs | None = None
    ) -> None:
        self.planner = planner
        self.published_dir = published_dir
        self._runs_dir = runs_dir
        self._earlier = earlier
        self._results: dict[str, Out | None] = {}
        self._running: set[str] = set()
        self._failed: set[str] = set()
        self._repeating: set[str] = set()
        self._repeated: set[str] = set()
        self._has_models: dict[str, bool] = {}
        self._ensembles: dict[tuple[str, ...], PlannedEnsemble | None] = {}
        self.groups = planner.groups(self.result)

    def result(self, work: Work) -> Out | None:
        """Return the result of a job or an ensemble, if it has one."""
        if work.digest not in self._results:
            found = finished(work, self.published_dir)
            if found is None and self._earlier is not None and isinstance(work, PlannedFinetune):
                found = take_result(work, self._earlier)
            self._results[work.digest] = found
        return self._results[work.digest]

    def results(self, jobs: Iterable[PlannedFinetune]) -> list[Out]:
        """Return the results of the jobs that have one, by digest."""
        found = [result for one in jobs if (result := self.result(one)) is not None]
        return sorted(found, key=lambda result: result["digest"])

    def jobs(self) -> list[PlannedFinetune]:
        return [one for group in self.groups for one in (*group.jobs, *group.pruned)]

    def ensembles(self) -> list[PlannedEnsemble]:
        """List all ensembles whose members have finished."""
        found = [self._ensemble(group) for group in self.groups if is_complete(group, self.result)]
        return [one for one in found if one is not None]

    def tidy(self) -> None:
        """Delete all models that are no longer needed; many large ones would fill the disk."""
        for group in self.groups:
            self._drop_models(group)

    def ready(self) -> list[Work]:
        """List the jobs that can start now, longest first."""
        idle = [one for one in self._wanted() if one.digest not in self._running | self._failed]
        return sorted(idle, key=lambda one: -one.cost)

    def left(self) -> list[Work]:
        """List the jobs and ensembles that are still to run, as far as known; those that run now may be missing."""
        blocked = [one for one in self.known() if self.result(one) is None]
        return list({one.digest: one for one in (*blocked, *self._wanted())}.values())

    def known(self) -> list[Work]:
        """List all jobs and ensembles that are known so far, finished or not."""
        return [*self.jobs(), *self.ensembles()]

    def num_failed(self) -> int:
        return len(self._failed)

    def start(self, work: Work) -> None:
        """Mark a job as running; the result of a job that runs again is deleted, so that it is not skipped as done."""
        if work.digest in self._repeating:
            work.run_dir.result.unlink(missing_ok=True)
        self._running.add(work.digest)

    def stopped(self, work: Work, failed: bool) -> None:
        """Mark a job as not running. It may start again, unless it `failed`; then jobs that depend on it do not run."""
        self._running.discard(work.digest)
        if failed:
            self._failed.add(work.digest)

    def ended(self, work: Work, result: Out) -> None:
        self._running.discard(work.digest)
        self._results[work.digest] = result
        if work.digest in self._repeating:
            self._repeated.add(work.digest)
        self.groups = self.planner.groups(self.result)
        if isinstance(work, PlannedFinetune):
            key = (work.job.encoder_name, work.job.benchmark)
            self._drop_models(next(group for group in self.groups if group.key == key))

    def _ensemble(self, group: Group) -> PlannedEnsemble | None:
        key = tuple(one.digest for one in group.jobs)
        if key not in self._ensembles:
            self._ensembles[key] = plan_ensemble(group, self.result, self._runs_dir)
        return self._ensembles[key]

    def _has_model(self, planned: PlannedFinetune) -> bool:
        is_first = planned.digest not in self._has_models
        if not self._has_models.get(planned.digest):
            found = model_of(planned, self.published_dir) is not None
            if not found and is_first and self._earlier is not None and self.result(planned) is not None:
                found = take_model(planned, self._earlier)
            self._has_models[planned.digest] = found
        return self._has_models[planned.digest]

    def _wanted(self) -> list[Work]:
        """Jobs without a result, or whose model or outputs are needed but deleted; dependent jobs wait for them."""
        wanted: dict[str, Work] = {}
        for one in self.jobs():
            if self.result(one) is None:
                if one.source is not None and not self._has_model(one.source):
                    self._repeat(one.source, wanted)
                else:
                    wanted[one.digest] = one
        for group in self.groups:
            best = best_of(group.jobs, self.result) if is_complete(group, self.result) else None
            if best is not None and not self._has_model(best):
                self._repeat(best, wanted)
        for ensemble in self.ensembles():
            if self.result(ensemble) is None:
                gone = [one for one in ensemble.members if outputs_of(one, self.published_dir) is None]
                for one in gone:
                    self._repeat(one, wanted)
                if not gone:
                    wanted[ensemble.digest] = ensemble
        return list(wanted.values())

    def _repeat(self, planned: PlannedFinetune, wanted: dict[str, Work]) -> None:
        """Run a finished job again because its model or outputs are needed but deleted."""
        if planned.digest in self._running | self._failed:
            return
        if planned.digest in self._repeated:
            raise RuntimeError(f"{planned.name} ran again, but the files needed from it are still missing")
        if planned.source is not None and not self._has_model(planned.source):
            self._repeat(planned.source, wanted)
            return
        self._repeating.add(planned.digest)
        wanted[planned.digest] = planned

    def _drop_models(self, group: Group) -> None:
        """Delete the models that cannot become the best.

        Kept are the best of the recipes whose seeds have all ended, the best seed of every other recipe (its mean may
        still become the highest), and, where another benchmark starts from them, the best of each seed.
        """
        recipes: dict[str, list[PlannedFinetune]] = {}
        for one in group.jobs:
            recipes.setdefault(one.job.recipe.model_dump_json(), []).append(one)
        ended: list[PlannedFinetune] = []
        keep: set[PlannedFinetune | None] = set()
        for jobs in recipes.values():
            if group.is_decided and len(self.results(jobs)) == len(jobs):
                ended += jobs
            else:
                keep.add(best_of(jobs, self.result))
        keep.add(best_of(ended, self.result))
        if self.planner.wants_seeds_of(group.benchmark):
            for seed in self.planner.params.seeds:
                keep.add(best_of([one for one in group.jobs if one.job.seed == seed], self.result))
        for one in (*group.jobs, *group.pruned):
            if one not in keep and one.digest not in self._running and self.result(one) is not None:
                shutil.rmtree(one.run_dir.model, ignore_errors=True)
                self._has_models.pop(one.digest, None)


class MemoryEstimator:
    """Estimates jobs' memory: as measured on finished jobs of the same shape, else an upper bound."""

    def __init__(self) -> None:
        self._measured: dict[tuple[object, ...], MemoryEstimate] = {}

    def learn(self, planned: PlannedFinetune) -> None:
        """Read the peak memory of a finished job, without memory shared with the fork server."""
        timing = read_state(planned.run_dir.timing)
        if "peak_memory_bytes" not in timing:
            return
        own = max(0, timing["peak_memory_bytes"] - timing.get("shared_memory_bytes", 0))
        device = timing.get("peak_device_memory_bytes", 0)
        known = self._measured.get(_shape_of(planned), MemoryEstimate(0))
        self._measured[_shape_of(planned)] = MemoryEstimate(
            max(known.memory_bytes, int(_MARGIN * own)), max(known.device_bytes, int(_MARGIN * device))
        )

    def estimate(self, work: Work) -> MemoryEstimate:
        if isinstance(work, PlannedEnsemble):
            return MemoryEstimate(_BASE_BYTES)
        return self._measured.get(_shape_of(work)) or _upper_bound(work)


def _shape_of(planned: PlannedFinetune) -> tuple[object, ...]:
    """Key of jobs that need the same memory: encoder, benchmark, and the recipe settings that affect a step's size."""
    job, recipe = planned.job, planned.job.recipe
    shape = (recipe.batch_size, recipe.max_length, recipe.max_train_rows, recipe.adapt)
    return (job.encoder_name, job.benchmark, *shape)


def _upper_bound(planned: PlannedFinetune) -> MemoryEstimate:
    """Copies of the weights, fp32 activations of the longest batch, and cached features."""
    job = planned.job
    config = read_json(job.encoder_dir / "config.json")
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    wide, heads = config["intermediate_size"], config["num_attention_heads"]
    sequences = job.recipe.batch_size * HEAD_SPECS[job.row.head].sequences_per_row(job.row)
    length = job.recipe.max_length
    per_token = layers * (12 * hidden + 3 * wide + 3 * heads * length)
    needed = _COPIES * weight_bytes(job.encoder_dir) + 4 * sequences * length * per_token
    if isinstance(job.recipe.adapt, FeatureAdaptation):
        needed += job.recipe.adapt.max_feature_bytes
    return MemoryEstimate(_BASE_BYTES + needed, needed)


class Progress(NamedTuple):
    """Progress of the fine-tuning stage at one moment."""

    num_done: int
    """Jobs and ensembles that this run has finished."""
    num_new: int
    """Jobs and ensembles that this run runs, as far as known."""
    num_cached: int
    num_failed: int
    done_cost: float
    new_cost: float
    running: tuple[Work, ...]

    def show(self, bar: Bar) -> None:
        """Update the stage's bar, with a line below it for each running job."""
        done, lines = self.done_cost, []
        for work in self.running:
            status = work.run_dir.read_status()
            if status.get("num_steps"):
                done += work.cost * status["step"] / status["num_steps"]
            lines.append(f"{work.name}  {_running(work, status)}")
        text = f"{self.num_done}/{self.num_new} new ({self.num_cached} cached)"
        if self.num_failed:
            text += f", {self.num_failed} failed"
        bar.update(done, self.new_cost, text, lines)


def _running(work: Work, status: Mapping[str, Any]) -> str:
    step, num_steps = status.get("step", 0), status.get("num_steps", 0)
    if not num_steps:
        return "loading"
    if isinstance(work, PlannedEnsemble) or step == num_steps:
        return "evaluating"
    num_epochs = work.job.recipe.num_epochs
    parts = [f"epoch {step * num_epochs // num_steps + 1}/{num_epochs}"]
    if "loss" in status:
        parts.append(f"loss {status['loss']:.3f}")
    if "headline" in status:
        parts.append(headline(status))
    return "  ".join(parts)


class JobQueue:
    """Starts the scheduler's jobs, longest first, as resources allow. `flows.stage_flow.fan_out` runs it.

    `progress` may be read by other threads.
    """

    def __init__(self, scheduler: JobScheduler, pool: Resources, estimator: MemoryEstimator) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._estimator = estimator
        self._done: dict[str, Work] = {}
        self._started: dict[str, Work] = {}
        self._alone: set[str] = set()  # jobs that ran out of memory and get the machine to themselves
        self._overtaken: dict[str, int] = {}
        self._moves: dict[str, tuple[int, int]] = {}  # lost nodes since the newest checkpoint, and its step
        for one in scheduler.jobs():
            if scheduler.result(one) is not None:
                estimator.learn(one)
        self._note_progress()

    def work(self, name: str) -> tuple[Work, Allocation]:
        return self._started[name], self._pool.allocations[name]

    def is_waiting(self) -> bool:
        """Check whether a job waits for resources that may come by themselves."""
        return self._pool.can_grow and bool(self._scheduler.ready())

    def take(self) -> str | None:
        """Start the longest job that fits. A job that shorter jobs have overtaken too often is scheduled next."""
        waiting = sorted(self._scheduler.ready(), key=lambda one: one.name in self._alone)
        for number, one in enumerate(waiting):
            memory = self._estimator.estimate(one)
            if self._pool.allocate(one.name, memory, one.name in self._alone) is not None:
                self._started[one.name] = one
                self._scheduler.start(one)
                for other in waiting[:number]:
                    self._overtaken[other.name] = self._overtaken.get(other.name, 0) + 1
                self._note_progress()
                return one.name
            if self._overtaken.get(one.name, 0) >= self._pool.num_jobs:
                return None
        return None

    def ended(self, name: str, outcome: Any) -> Any:
        """Release a job's resources and return its outcome.

        Returns:
            None if the job starts again: alone, once, after it ran out of memory, or elsewhere, after it lost its node.
        """
        one = self._started[name]
        self._pool.release(name)
        if isinstance(outcome, dict):
            if isinstance(one, PlannedFinetune):
                self._estimator.learn(one)
            self._scheduler.ended(one, outcome)
            self._done[name] = one
            self._note_progress()
            return outcome
        has_failed = isinstance(outcome, JobFailed)
        is_retried = has_failed and self._is_retried(one, outcome.fault)
        self._scheduler.stopped(one, failed=has_failed and not is_retried)
        self._note_progress()
        return None if is_retried else outcome

    def _is_retried(self, one: Work, fault: str) -> bool:
        if fault == "memory" and one.name not in self._alone:
            self._alone.add(one.name)
            return True
        if fault != "node":
            return False
        count, before = self._moves.get(one.name, (0, 0))
        saved = one.run_dir.saved_step()
        count = count + 1 if saved == before else 1
        self._moves[one.name] = count, saved
        return count < _MOST_LOSSES

    def _note_progress(self) -> None:
        running = tuple(self._started[name] for name in self._pool.allocations)
        new = {one.name: one for one in running}
        new |= {one.name: one for one in self._scheduler.left()}
        new |= self._done
        self.progress = Progress(
            num_done=len(self._done.keys() - self._pool.allocations.keys()),
            num_new=len(new),
            num_cached=len(self._scheduler.known()) - len(new),
            num_failed=self._scheduler.num_failed(),
            done_cost=sum(one.cost for one in self._done.values()),
            new_cost=sum(one.cost for one in new.values()),
            running=running,
        )


def assemble(scheduler: JobScheduler, out_dir: Path) -> None:
    """Write out_dir/<encoder>/<benchmark>/{metrics.json, jobs/<digest>/, model/}.

    Ensemble members keep their raw outputs, so that an ensemble with more seeds can reuse them.
    """
    ensembles = {one.group.key: one for one in scheduler.ensembles()}
    for group in scheduler.groups:
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
            "jobs": scheduler.results(group.jobs),
        }
        if best.job.own is not None:
            metrics["row"] = best.job.own.model_dump(mode="json")
        if group.after:
            metrics["after"] = list(group.after)
        if scheduler.planner.params.prune is not None:
            metrics["pruned"] = scheduler.results(group.pruned)
        if ensemble is not None and scheduler.result(ensemble) is not None:
            metrics["ensemble"] = scheduler.result(ensemble)
        write_json(target.metrics, metrics)


def describe(scheduler: JobScheduler) -> Out:
    """Content of plan.json: encoders, benchmarks, their dependencies, and pruned grid points."""
    planner = scheduler.planner
    plan: Out = {
        "encoders": [
            {"name": encoder.name, "kind": encoder.kind}
            | ({"system": encoder.system, "seed": encoder.seed} if encoder.system else {})
            for encoder in planner.encoders
        ],
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
