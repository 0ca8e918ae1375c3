"""Every system compared with the reference, and the gap between encoders."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scipy import stats

from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from tasks.leaderboard.comparisons import compare_all, gap_between, interval, reference_of, shared_averages, why_not
from tasks.leaderboard.schema import CombinedSystem, ReferenceComparison, RunSystem

HEADLINE = {"sst2": "accuracy", "rte": "accuracy"}


CELL: dict[str, Any] = {
    "recipe": {},
    **dict.fromkeys(("num_recipes", "num_train_rows"), 1),
    **{key: [] for key in ("seeds", "values", "runs", "jobs")},
    **dict.fromkeys(("num_degenerate", "num_skipped_rows"), 0),
    **dict.fromkeys(("num_all_train_rows", "num_all_dev_rows"), None),
    "all_degenerate": False,
    "best_run": "",
    "num_dev_rows": 200,
    "dev_digest": "same",
}
NO_SPREAD = {"std": None, "median": 0.0, "best": 0.0}


def made(name: str, scores: dict[str, dict[str, Any]], cells: dict[str, dict[str, Any]], split: str) -> RunSystem:
    """A measured system of accuracies."""
    content = {
        "name": name,
        "kind": "pretrained",
        "split": split,
        "digest": name,
        "average": None,
        "glue_average": None,
        "scores": {
            task: {"accuracy": {"std": None, "median": 0, "best": 0, **score}} for task, score in scores.items()
        },
        "cells": {task: CELL | cell for task, cell in cells.items()},
    }
    return RunSystem.parse(content, name)


def system(name: str, values: dict[str, list[float]], split: str = "dev", **cell: Any) -> RunSystem:
    scores = {task: {"mean": sum(found) / len(found), "num_runs": len(found)} for task, found in values.items()}
    cells = {task: {"seeds": list(range(len(found))), "values": found, **cell} for task, found in values.items()}
    return made(name, scores, cells, split)


def nothing(_system: Any, _task: str) -> None:
    return None


def compare(one: RunSystem, other: RunSystem, predictions: Any = nothing) -> dict[str, ReferenceComparison]:
    return compare_all([one, other], HEADLINE, other, predictions)[one.name]


def test_the_reference_has_the_most_benchmarks_then_the_highest_mean() -> None:
    few = system("few", {"sst2": [99.0]})
    good = system("good", {"sst2": [80.0], "rte": [70.0]})
    better = system("better", {"sst2": [81.0], "rte": [70.0]})
    assert reference_of([few, good, better], HEADLINE) is better
    assert reference_of([few, good, better], HEADLINE, "few") is few
    renamed = [
        CombinedSystem.parse({**one.model_dump(exclude={"average_of"}), "encoder": "e", "runs": [], "cost": None}, "e")
        for one in (good, better)
    ]
    assert reference_of(renamed, HEADLINE, "e") is renamed[1]
    assert reference_of([], HEADLINE) is None
    with pytest.raises(UserError, match="no system 'god'; did you mean 'good'"):
        reference_of([few, good], HEADLINE, "god")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"split": "test"}, "test against dev"),
        ({"num_dev_rows": 1000}, "other dev rows: 1,000 against 200"),
        ({"dev_digest": "other"}, "other dev rows of the same number"),
    ],
)
def test_no_difference_is_taken_across_splits_or_rows(change: dict[str, Any], reason: str) -> None:
    ours, theirs = system("ours", {"sst2": [80.0, 81.0]}, **change), system("theirs", {"sst2": [70.0, 71.0]})
    assert why_not(ours, theirs, "sst2", "accuracy") == reason
    record = compare(ours, theirs)["sst2"]
    assert record.reason == reason
    assert (record.difference, record.p, record.verdict) == (None, None, "none")


def test_a_missing_score_is_the_reason() -> None:
    found = compare(system("ours", {"sst2": [80.0]}), system("theirs", {"sst2": [70.0], "rte": [60.0]}))
    assert found["rte"].reason == "ours has no score"


def test_one_seed_and_no_predictions_are_not_tested() -> None:
    record = compare(system("ours", {"sst2": [80.0]}), system("theirs", {"sst2": [70.0]}))["sst2"]
    assert (record.difference, record.p, record.verdict) == (10.0, None, "untested")


def test_seeds_alone_tell_a_clear_difference_and_not_a_noisy_one() -> None:
    ours = system("ours", {"sst2": [80.0, 80.4, 79.8, 80.1], "rte": [60.0, 66.0, 58.0, 63.0]})
    theirs = system("theirs", {"sst2": [70.1, 70.0, 70.3, 69.8], "rte": [61.0, 59.0, 64.0, 60.0]})
    found = compare(ours, theirs)
    p = found["sst2"].p
    assert found["sst2"].verdict == "ahead" and p is not None and p < 0.001
    assert found["rte"].verdict == "level"
    assert compare(theirs, ours)["sst2"].verdict == "behind"


def test_what_holm_takes_away_is_a_hint() -> None:
    # Paired over three seeds: t = 6.1 for a difference of 4, p about 0.026; of two benchmarks corrected 0.052.
    ours = system("ours", {"sst2": [84.0, 85.0, 83.0], "rte": [60.0, 61.0, 62.0]})
    theirs = system("theirs", {"sst2": [80.0, 80.0, 80.2], "rte": [61.0, 60.0, 62.5]})
    record = compare(ours, theirs)["sst2"]
    assert record.p < 0.05 <= record.p_corrected
    assert record.verdict == "perhaps ahead"


def rows(num_right: int, num_rows: int = 200) -> list[dict[str, Any]]:
    order = random.Random(num_right).sample(range(num_rows), num_rows)
    return [
        {"id": str(row), "label": "1", "prediction": "1" if place < num_right else "0"}
        for row, place in enumerate(order)
    ]


def test_rows_decide_where_there_is_one_seed() -> None:
    ours, theirs = system("ours", {"sst2": [85.0]}), system("theirs", {"sst2": [60.0]})
    kept = {"ours": [rows(170)], "theirs": [rows(120)]}
    record = compare(ours, theirs, lambda one, _task: kept[one.name])["sst2"]
    assert record.seed_p is None and record.row_p < 0.01
    assert record.low < 25 < record.high
    assert record.verdict == "ahead"


def test_both_tests_have_to_agree() -> None:
    # On the rows the difference is plain; over the seeds it is not.
    ours = system("ours", {"sst2": [95.0, 60.0]})
    theirs = system("theirs", {"sst2": [60.0, 61.0]})
    kept = {"ours": [rows(190), rows(120)], "theirs": [rows(120), rows(122)]}
    record = compare(ours, theirs, lambda one, _task: kept[one.name])["sst2"]
    assert record.row_p < 0.01 < record.seed_p == record.p
    assert record.verdict == "level"


def test_an_own_task_has_its_row_given() -> None:
    ours, theirs = system("ours", {"mine": [85.0]}), system("theirs", {"mine": [60.0]})
    kept = {"ours": [rows(170)], "theirs": [rows(120)]}
    headline = {"mine": "accuracy"}
    own = {"mine": BENCHMARKS["sst2"].model_copy(update={"name": "mine"})}
    found = compare_all([ours, theirs], headline, theirs, lambda one, _task: kept[one.name], own)
    assert found["ours"]["mine"].row_p is not None
    found = compare_all([ours, theirs], headline, theirs, lambda one, _task: kept[one.name])
    assert found["ours"]["mine"].verdict == "untested"


GAP_HEADLINE = {"a": "accuracy", "b": "accuracy", "c": "accuracy"}
ROWS = {"a": 5000, "b": 1000, "c": 999}


def of_means(name: str, means: dict[str, float], rows: dict[str, int], split: str = "dev") -> RunSystem:
    scores = {task: {"mean": mean, "std": 1.0, "best": mean, "num_runs": 4} for task, mean in means.items()}
    return made(name, scores, {task: {"num_train_rows": rows[task]} for task in means}, split)


def test_the_interval_is_the_paired_t_interval_of_scipy() -> None:
    differences = [3.0, -1.0, 7.5, 2.25, 4.0]
    expected = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    record = interval(differences)
    assert (record.low, record.high) == pytest.approx((expected.low, expected.high), abs=1e-3)
    assert record.num_ahead == 4


def test_one_benchmark_has_a_lead_and_no_interval() -> None:
    assert interval([2.0]).model_dump() == {"mean": 2.0, "low": None, "high": None, "num_benchmarks": 1, "num_ahead": 1}
    assert interval([]).mean is None


def test_small_benchmarks_are_left_out_of_the_larger_ones() -> None:
    ours = of_means("p", {"a": 80, "b": 70, "c": 60}, ROWS)
    theirs = of_means("s", {"a": 70, "b": 66, "c": 61}, ROWS)
    gap = gap_between(ours, theirs, GAP_HEADLINE)
    assert gap.per_task["c"].difference == -1.0
    assert gap.all.mean == pytest.approx(13 / 3, abs=1e-3)
    assert gap.all.num_ahead == 2
    assert gap.large.tasks == ["a", "b"]
    assert gap.large.mean == 7.0


def test_a_benchmark_that_one_side_lacks_is_not_compared() -> None:
    gap = gap_between(of_means("p", {"a": 80, "b": 70}, ROWS), of_means("s", {"a": 70}, ROWS), GAP_HEADLINE)
    assert list(gap.per_task) == ["a"]
    assert gap.all.num_benchmarks == 1


def test_the_standard_error_of_a_difference_is_that_of_two_means() -> None:
    gap = gap_between(of_means("p", {"a": 80}, ROWS), of_means("s", {"a": 70}, ROWS), GAP_HEADLINE)
    assert gap.per_task["a"].standard_error == pytest.approx((1 / 4 + 1 / 4) ** 0.5, abs=1e-4)


def test_no_difference_is_taken_across_splits() -> None:
    with pytest.raises(AssertionError):
        gap_between(of_means("p", {"a": 80}, ROWS), of_means("q", {"a": 70}, ROWS, "test"), GAP_HEADLINE)


def test_systems_are_ranked_over_the_benchmarks_they_share() -> None:
    """A lacks the hard benchmark, B the easy one, C has all: the truth is A > C > B, plain means say A > B > C."""
    ability, ease = {"a": 4.0, "b": -3.0, "c": 0.0}, {"cola": 50.0, "sst2": 90.0, "rte": 60.0, "mrpc": 80.0}
    has = {"a": ("sst2", "rte", "mrpc"), "b": ("sst2", "mrpc"), "c": tuple(ease)}
    systems = [system(name, {task: [ability[name] + ease[task]] for task in tasks}) for name, tasks in has.items()]
    headline = dict.fromkeys(ease, "accuracy")
    found = shared_averages(systems, headline)
    assert found == pytest.approx({name: 70 + value for name, value in ability.items()}, abs=1e-3)


def test_systems_without_a_shared_benchmark_are_not_ranked() -> None:
    systems = [
        system("a", {"cola": [50.0], "rte": [60.0]}),
        system("b", {"rte": [55.0]}),
        system("c", {"sst2": [99.0]}),
    ]
    found = shared_averages(systems, dict.fromkeys(("cola", "rte", "sst2"), "accuracy"))
    assert found == pytest.approx({"a": 55.0, "b": 50.0}, abs=1e-3)
    assert shared_averages([], {}) == {}
