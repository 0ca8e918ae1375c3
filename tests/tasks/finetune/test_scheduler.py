"""The scheduler: interrupted anywhere and resumed, it runs the missing jobs and keeps the models that count."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from model.common.files import write_json
from tasks.finetune.plan import PlannedFinetune, best_of
from tasks.finetune.results import PlannedEnsemble, Work
from tasks.finetune.scheduler import JobQueue, JobScheduler, MemoryEstimator, assemble, describe
from tasks.jobs.resources import ResourcePool
from tasks.jobs.supervision import JobFailed
from tests.tasks.finetune.conftest import World

CHAIN = {
    "seeds": [1, 2],
    "grid": {"learning_rate": [1e-5, 2e-5, 3e-5]},
    "prune": {"keep": 0.5},
    "benchmarks": {"rte": {"after": "mnli"}, "mnli": None, "mrpc": {"after": "mnli", "start": "same-seed"}},
}
Score = Callable[[PlannedFinetune], float]


def end(world: World, work: Work, score: Score) -> dict:
    """Do what a worker does."""
    if isinstance(work, PlannedEnsemble):
        members = [one.digest for one in work.members]
        result = {"digest": work.digest, "members": members, "headline": {"metric": "accuracy", "value": 1.0}}
        write_json(work.run_dir.result, result)
        return result
    return world.end(work, score(work))


def walk(world: World, scheduler: JobScheduler, score: Score, starts: list[str], order: int, most: int = 10**6) -> bool:
    """Run jobs two at a time in some order; after `most` of them the run is killed (False)."""
    chance = random.Random(order)
    scheduler.tidy()
    running: list[Work] = []
    while True:
        for one in scheduler.ready()[: 2 - len(running)]:
            scheduler.start(one)
            starts.append(one.name)
            running.append(one)
        if not running:
            return True
        one = running.pop(chance.randrange(len(running)))
        scheduler.ended(one, end(world, one, score))
        most -= 1
        if not most:
            return False


def new(world: World, **params: object) -> JobScheduler:
    return JobScheduler(world.planner(**{**CHAIN, **params}), world.runs, world.published)


def test_killed_anywhere_no_job_runs_again(tmp_path: Path, by_rate: Score) -> None:
    whole = World(tmp_path / "whole")
    starts: list[str] = []
    scheduler = new(whole)
    assert walk(whole, scheduler, by_rate, starts, 0)
    assert len(starts) == len(set(starts)) == 3 * 5 + 3
    for after in range(1, len(starts)):
        world = World(tmp_path / f"killed-{after}")
        seen: list[str] = []
        assert not walk(world, new(world), by_rate, seen, after, most=after)
        running = len(seen) - after  # these two may start again; what has ended never does
        assert walk(world, new(world), by_rate, seen, after + 1)
        assert set(seen) == set(starts) and len(seen) - len(starts) <= running <= 2


def test_only_the_models_that_count_are_kept(world: World, by_rate: Score) -> None:
    scheduler = new(world)
    walk(world, scheduler, by_rate, [], 3)
    kept = {path.parent.name for path in world.runs.glob("*/model")}
    mnli, *_ = scheduler.groups
    wanted = {best_of(group.jobs, scheduler.result).run_dir.path.name for group in scheduler.groups}
    for seed in (1, 2):
        jobs = [one for one in mnli.jobs if one.job.seed == seed]
        wanted.add(best_of(jobs, scheduler.result).run_dir.path.name)
    assert kept == wanted and len(kept) == 4


@pytest.mark.parametrize("order", range(4))
def test_the_recipe_with_the_best_mean_is_published_and_no_job_runs_twice(world: World, order: int) -> None:
    lucky, steady = {1: 99.0, 2: 10.0}, {1: 81.0, 2: 80.0}
    scheduler = new(world, prune=None, benchmarks={"mnli": None})
    rates = sorted({one.job.recipe.learning_rate for group in scheduler.groups for one in group.jobs})
    score = lambda one: (lucky if one.job.recipe.learning_rate == rates[0] else steady)[one.job.seed]  # noqa: E731
    starts: list[str] = []
    assert walk(world, scheduler, score, starts, order)
    assert len(starts) == len(set(starts))
    best = best_of(scheduler.groups[0].jobs, scheduler.result)
    assert best is not None and best.job.recipe.learning_rate != rates[0] and best.job.seed == 1
    assert [path.parent.name for path in world.runs.glob("*/model")] == [best.run_dir.path.name]


def test_the_output_says_what_came_after_what_and_what_was_given_up(
    world: World, by_rate: Score, tmp_path: Path
) -> None:
    from model.common.files import read_json

    scheduler = new(world)
    walk(world, scheduler, by_rate, [], 3)
    assemble(scheduler, tmp_path / "out")
    metrics = read_json(tmp_path / "out/ours/rte/metrics.json")
    assert metrics["after"] == ["mnli"] and metrics["kind"] == "pretrained"
    assert len(metrics["jobs"]) == 4 and len(metrics["pruned"]) == 1
    assert metrics["best"] in {job["digest"] for job in metrics["jobs"]}
    assert len(metrics["ensemble"]["members"]) == 2
    for digest in metrics["ensemble"]["members"]:
        assert (tmp_path / "out/ours/rte/jobs" / digest / "outputs.safetensors").exists()
    assert len(list((tmp_path / "out/ours/rte/jobs").iterdir())) == 5
    plan = describe(scheduler)
    assert plan["after"] == {"rte": ["mnli"], "mrpc": ["mnli"]}
    assert plan["benchmarks"] == ["mrpc", "mnli", "rte"]
    assert [len(entry["jobs"]) for entry in plan["pruned"]] == [1, 1, 1]
    # from the published output alone, as in a clone that pulled it, nothing runs again
    (tmp_path / "out").rename(world.published)
    world.runs.rename(tmp_path / "elsewhere")
    again = new(world)
    assert [one.name for one in again.ready()] == []


def test_a_source_whose_model_is_gone_runs_again_first(world: World, by_rate: Score, tmp_path: Path) -> None:
    scheduler = new(world)
    walk(world, scheduler, by_rate, [], 3)
    assemble(scheduler, world.published)
    world.runs.rename(tmp_path / "elsewhere")
    changed = new(
        world, benchmarks={**CHAIN["benchmarks"], "mrpc": {**CHAIN["benchmarks"]["mrpc"], "recipe": {"dropout": 0.2}}}
    )
    starts: list[str] = []
    assert walk(world, changed, by_rate, starts, 1)
    again = [name for name in starts if "/mnli/" in name]
    assert again == ["ours/mnli/lr=3e-5/seed=1"], "its best of that seed is no published model; of seed 2 it is"
    mrpc = [name for name in starts if name.startswith("ours/mrpc/lr=")]
    assert len(mrpc) == 5
    assert starts.index(again[0]) < max(starts.index(name) for name in mrpc if name.endswith("/seed=1"))


class TestJobQueue:
    """Jobs start as resources allow."""

    def queue(self, world: World, pool: ResourcePool, **params: object) -> tuple[JobScheduler, JobQueue]:
        scheduler = JobScheduler(world.planner(**{"seeds": [1, 2], **params}), world.runs, world.published)
        return scheduler, JobQueue(scheduler, pool, MemoryEstimator())

    def test_the_first_of_a_shape_tells_what_the_others_need(self, world: World) -> None:
        _, queue = self.queue(world, ResourcePool(8, 500 * 2**20), benchmarks={"mnli": None})
        first = queue.take()
        assert first is not None and queue.take() is None, "by the estimate one fits"
        work, _ = queue.work(first)
        write_json(work.run_dir.timing, {"peak_memory_bytes": 300 * 2**20, "shared_memory_bytes": 200 * 2**20})
        queue.ended(first, end(world, work, lambda _: 50.0))
        second = queue.take()
        assert second is not None and queue.work(second)[1].memory.memory_bytes == pytest.approx(110 * 2**20)

    def test_out_of_memory_is_tried_again_alone_once(self, world: World) -> None:
        scheduler, queue = self.queue(world, ResourcePool(2, 10**12), benchmarks={"mnli": None, "rte": None})
        names = [queue.take(), queue.take()]
        assert queue.take() is None
        lacking = JobFailed(names[0], "memory", "", "")
        assert queue.ended(names[0], lacking) is None
        third = queue.take()
        assert third not in (None, *names), "others first: alone it waits until nothing runs"
        for name in (names[1], third):
            queue.ended(name, end(world, queue.work(name)[0], lambda _: 50.0))
        fourth = queue.take()
        queue.ended(fourth, end(world, queue.work(fourth)[0], lambda _: 50.0))
        while (name := queue.take()) != names[0]:  # ensembles of what has ended
            queue.ended(name, end(world, queue.work(name)[0], lambda _: 50.0))
        assert queue.take() is None, "it is alone"
        assert queue.ended(names[0], lacking) is lacking
        assert queue.take() is None and len(scheduler.ready()) == 0

    def test_a_job_that_loses_its_node_moves_until_nothing_is_gained(self, world: World) -> None:
        _, queue = self.queue(world, ResourcePool(1, 10**12), benchmarks={"mnli": None}, seeds=[1])
        for step in (0, 0, 10, 10):
            name = queue.take()
            assert name is not None
            work, _ = queue.work(name)
            (work.run_dir.checkpoints / f"step-{step:08}").mkdir(parents=True, exist_ok=True)
            assert queue.ended(name, JobFailed(name, "node", "", "")) is None
        assert queue.take() == name
        lost = JobFailed(name, "node", "", "")
        assert queue.ended(name, lost) is lost, "three nodes without a new checkpoint"
        assert queue.take() is None and not queue.is_waiting()

    def test_one_that_was_passed_too_often_is_waited_for(self, world: World) -> None:
        scheduler, queue = self.queue(
            world, ResourcePool(2, 35 * 10**8), benchmarks={"mnli": None, "rte": None}, seeds=[1, 2, 3, 4]
        )
        for one in scheduler.jobs():
            size = 2 * 10**9 if one.job.benchmark == "mnli" else 10**9
            write_json(one.run_dir.timing, {"peak_memory_bytes": size, "shared_memory_bytes": 0})
            queue._estimator.learn(one)
        taken = [queue.take(), queue.take()]
        assert [name.split("/")[1] for name in taken] == ["mnli", "rte"]
        queue.ended(taken[1], end(world, queue.work(taken[1])[0], lambda _: 50.0))
        second = queue.take()
        assert second.split("/")[1] == "rte", "a second short one may pass the waiting mnli"
        queue.ended(second, end(world, queue.work(second)[0], lambda _: 50.0))
        assert queue.take() is None, "a third may not"
        queue.ended(taken[0], end(world, queue.work(taken[0])[0], lambda _: 50.0))
        assert queue.take().split("/")[1] == "mnli"

    def test_progress_counts_repeated_jobs_before_they_start(self, world: World) -> None:
        scheduler, _ = self.queue(world, ResourcePool(1, 10**12), seeds=[1])
        for one in scheduler.jobs():
            world.end(one, 50.0)
            shutil.rmtree(one.run_dir.model)
        _, queue = self.queue(world, ResourcePool(1, 10**12), seeds=[1])
        assert queue.progress[:4] == (0, 2, 0, 0)
        for done in (1, 2):
            name = queue.take()
            queue.ended(name, end(world, queue.work(name)[0], lambda _: 50.0))
            assert queue.progress[:4] == (done, 2, 0, 0)

    def test_progress_counts_new_cached_and_failed_jobs(self, world: World) -> None:
        scheduler = JobScheduler(world.planner(seeds=[1]), world.runs, world.published)
        for one in scheduler.jobs():
            if one.job.benchmark == "rte":
                world.end(one, 50.0)
        _, queue = self.queue(world, ResourcePool(2, 10**12), seeds=[1, 2])
        assert queue.progress[:4] == (0, 3, 1, 0)
        first, second = queue.take(), queue.take()
        assert [one.name for one in queue.progress.running] == [first, second]
        queue.ended(first, end(world, queue.work(first)[0], lambda _: 50.0))
        assert queue.progress[:4] == (1, 3, 1, 0)
        queue.ended(second, JobFailed(second, "user", "", ""))
        assert queue.progress[:4] == (1, 3, 1, 1)
        assert 0 < queue.progress.done_cost < queue.progress.new_cost
