"""The plan follows from results alone: chains name what they start from, grids lose their hopeless points."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe
from tasks.finetune.plan import PlannedFinetune, best_of, surviving, varied
from tasks.params.finetune import PruneParams
from tests.tasks.finetune.conftest import World

RATES = {"learning_rate": [1e-5, 2e-5, 3e-5, 4e-5]}
Score = Callable[[PlannedFinetune], float]


def grown(world: World, planner: Any, score: Score, order: int) -> dict[str, dict[str, Any]]:
    """Results of a whole fan-out, its jobs ended in some order."""
    results: dict[str, dict[str, Any]] = {}
    chance = random.Random(order)
    while True:
        groups = planner.groups(lambda one: results.get(one.digest))
        todo = [one for group in groups for one in group.jobs if one.digest not in results]
        if not todo:
            return results
        one = chance.choice(todo)
        results[one.digest] = world.result(one, score(one))


def test_a_plan_without_chains_knows_all_its_jobs(world: World) -> None:
    planner = world.planner(seeds=[1, 2], grid=RATES)
    groups = planner.groups(lambda _: None)
    assert [(group.benchmark, len(group.jobs)) for group in groups] == [("mnli", 8), ("rte", 8)]
    assert all(group.is_decided and not group.pruned for group in groups)
    assert len({one.digest for group in groups for one in group.jobs}) == 16


def test_a_chained_job_is_named_by_the_one_it_starts_from(world: World, by_rate: Score) -> None:
    planner = world.planner(seeds=[1, 2], grid=RATES, benchmarks={"rte": {"after": "mnli"}, "mnli": None})
    [mnli] = planner.groups(lambda _: None)
    results = {one.digest: world.result(one, by_rate(one)) for one in mnli.jobs}
    missing = results.pop(mnli.jobs[3].digest)
    assert len(planner.groups(lambda one: results.get(one.digest))) == 1, "rte waits for all of mnli"
    results[missing["digest"]] = missing
    _, rte = planner.groups(lambda one: results.get(one.digest))
    best = best_of(mnli.jobs, lambda one: results.get(one.digest))
    assert best is not None
    assert {one.source.digest for one in rte.jobs} == {best.digest}
    assert rte.after == ("mnli",) and rte.jobs[0].job.after == "mnli"
    other = {**results, best.digest: world.result(best, 0.0)}
    _, changed = planner.groups(lambda one: other.get(one.digest))
    assert not {one.digest for one in rte.jobs} & {one.digest for one in changed.jobs}
    plain = world.planner(seeds=[1, 2], grid=RATES).groups(lambda _: None)[1]
    assert not {one.digest for one in rte.jobs} & {one.digest for one in plain.jobs}


def test_same_seeds_go_together(world: World, by_rate: Score) -> None:
    links = {"rte": {"after": "mnli", "start": "same-seed"}, "mnli": None}
    planner = world.planner(seeds=[1, 2, 3], benchmarks=links)
    results = grown(world, planner, by_rate, 0)
    _, rte = planner.groups(lambda one: results.get(one.digest))
    assert [one.source.job.seed for one in rte.jobs] == [one.job.seed for one in rte.jobs] == [1, 2, 3]
    assert planner.wants_seeds_of("mnli") and not planner.wants_seeds_of("rte")


def test_hopeless_points_get_no_more_seeds(world: World, by_rate: Score) -> None:
    planner = world.planner(seeds=[1, 2, 3], grid=RATES, prune={"keep": 0.5}, benchmarks={"mnli": None})
    [first] = planner.groups(lambda _: None)
    assert [one.job.seed for one in first.jobs] == [1, 1, 1, 1] and not first.is_decided
    results = grown(world, planner, by_rate, 0)
    [group] = planner.groups(lambda one: results.get(one.digest))
    assert {one.job.recipe.learning_rate for one in group.jobs} == {3e-5, 4e-5} and len(group.jobs) == 6
    assert {one.job.recipe.learning_rate for one in group.pruned} == {1e-5, 2e-5} and len(group.pruned) == 2
    assert len(results) == 8, "12 without pruning"


@pytest.mark.parametrize("links", [{"mnli": None, "rte": None}, {"rte": {"after": "mnli"}, "mnli": None}])
def test_the_order_of_arrival_changes_nothing(world: World, links: dict[str, Any]) -> None:
    score = lambda one: random.Random(one.digest).random() * 100  # noqa: E731
    params = {
        "seeds": [1, 2, 3],
        "grid": RATES,
        "prune": {"after_seeds": 2, "keep": 0.3, "margin": 5},
        "benchmarks": links,
    }
    runs = [grown(world, world.planner(**params), score, order) for order in range(5)]
    assert all(run == runs[0] for run in runs)
    assert len(runs[0]) < 24


def result(value: float, name: str, degenerate: bool = False) -> dict[str, Any]:
    headline = {"metric": "accuracy", "value": value}
    return {"headline": headline, "digest": name, "seed": 1, "recipe": {"name": name}, "degenerate": degenerate}


def test_who_survives() -> None:
    points = [[result(70, "a")], [result(71, "b")], [result(99, "c", degenerate=True)], [result(60, "d")]]
    assert surviving(points, PruneParams(keep=0.25)) == {1}
    assert surviving(points, PruneParams(keep=0.25, margin=1)) == {0, 1}
    assert surviving(points, PruneParams(keep=0.75)) == {0, 1, 3}, "a run that gives one answer is last"
    assert surviving(points, PruneParams(keep=1)) == {0, 1, 2, 3}
    assert surviving([[result(5, "a")], [result(5, "b")]], PruneParams(keep=0.5)) == {0, 1}, (
        "equal ones share their fate"
    )


def test_a_missing_file_is_named(world: World) -> None:
    (world.data / "glue/RTE/dev.tsv").unlink()
    with pytest.raises(UserError, match=r"dev.tsv is missing; the benchmark rte needs it"):
        world.planner()


def test_jobs_are_named_by_what_differs(world: World) -> None:
    def names(**params: Any) -> list[str]:
        return [one.name for group in world.planner(**params).groups(lambda _: None) for one in group.jobs]

    assert names(benchmarks={"rte": None}) == ["ours/rte/seed=1"]
    grid = {"learning_rate": [5e-4, 0.001], "batch_size": [16, 32], "num_epochs": [2]}
    assert names(benchmarks={"rte": None}, grid=grid, seeds=[7]) == [
        f"ours/rte/batch={batch}/lr={rate}/seed=7" for batch in (16, 32) for rate in ("5e-4", "1e-3")
    ]
    close = names(benchmarks={"rte": None}, grid={"learning_rate": [1.00000001e-5, 1.00000002e-5]})
    assert len(set(close)) == 2 and close[0] == "ours/rte/seed=1", "a digest only where names would be equal"


def test_settings_that_only_some_recipes_have_are_named_if_they_differ() -> None:
    kinds: list[Any] = ["full", {"kind": "lora", "rank": 4}, {"kind": "lora", "rank": 8}]
    recipes = [FinetuneRecipe.parse({"adapt": kind}, "test") for kind in kinds]
    assert varied(recipes) == [["adapt=full"], ["adapt=lora", "adapt.rank=4"], ["adapt=lora", "adapt.rank=8"]]
