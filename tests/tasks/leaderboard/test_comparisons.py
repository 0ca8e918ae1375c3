"""Everyone against the champion."""

from __future__ import annotations

import random
from typing import Any

import pytest

from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from tasks.leaderboard.comparisons import champion_of, compare_all, why_not

HEADLINE = {"sst2": "accuracy", "rte": "accuracy"}


def system(name: str, values: dict[str, list[float]], split: str = "dev", **cell: Any) -> dict[str, Any]:
    return {
        "name": name,
        "split": split,
        "scores": {task: {"accuracy": {"mean": sum(found) / len(found)}} for task, found in values.items()},
        "cells": {
            task: {
                "seeds": list(range(len(found))),
                "values": found,
                "num_dev_rows": 200,
                "dev_digest": "same",
                **cell,
            }
            for task, found in values.items()
        },
    }


def nothing(_system: Any, _task: str) -> None:
    return None


def compare(one: dict[str, Any], other: dict[str, Any], predictions: Any = nothing) -> dict[str, dict[str, Any]]:
    return compare_all([one, other], HEADLINE, other["name"], predictions)[one["name"]]


def test_the_champion_has_the_most_benchmarks_then_the_highest_mean() -> None:
    few = system("few", {"sst2": [99.0]})
    good = system("good", {"sst2": [80.0], "rte": [70.0]})
    better = system("better", {"sst2": [81.0], "rte": [70.0]})
    assert champion_of([few, good, better], HEADLINE) == "better"
    assert champion_of([few, good, better], HEADLINE, "few") == "few"
    assert champion_of([{**good, "encoder": "e"}, {**better, "encoder": "e"}], HEADLINE, "e") == "better"
    assert champion_of([], HEADLINE) is None
    with pytest.raises(UserError, match="no system 'god'; did you mean 'good'"):
        champion_of([few, good], HEADLINE, "god")


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
    assert record["reason"] == reason
    assert (record["difference"], record["p"], record["verdict"]) == (None, None, "none")


def test_a_missing_score_is_the_reason() -> None:
    found = compare(system("ours", {"sst2": [80.0]}), system("theirs", {"sst2": [70.0], "rte": [60.0]}))
    assert found["rte"]["reason"] == "ours has no score"


def test_one_seed_and_no_predictions_are_not_tested() -> None:
    record = compare(system("ours", {"sst2": [80.0]}), system("theirs", {"sst2": [70.0]}))["sst2"]
    assert (record["difference"], record["p"], record["verdict"]) == (10.0, None, "untested")


def test_seeds_alone_tell_a_clear_difference_and_not_a_noisy_one() -> None:
    ours = system("ours", {"sst2": [80.0, 80.4, 79.8, 80.1], "rte": [60.0, 66.0, 58.0, 63.0]})
    theirs = system("theirs", {"sst2": [70.1, 70.0, 70.3, 69.8], "rte": [61.0, 59.0, 64.0, 60.0]})
    found = compare(ours, theirs)
    assert found["sst2"]["verdict"] == "ahead" and found["sst2"]["p"] < 0.001
    assert found["rte"]["verdict"] == "level"
    assert compare(theirs, ours)["sst2"]["verdict"] == "behind"


def test_what_holm_takes_away_is_a_hint() -> None:
    # Paired over three seeds: t = 6.1 for a difference of 4, p about 0.026; of two benchmarks corrected 0.052.
    ours = system("ours", {"sst2": [84.0, 85.0, 83.0], "rte": [60.0, 61.0, 62.0]})
    theirs = system("theirs", {"sst2": [80.0, 80.0, 80.2], "rte": [61.0, 60.0, 62.5]})
    record = compare(ours, theirs)["sst2"]
    assert record["p"] < 0.05 <= record["p_corrected"]
    assert record["verdict"] == "perhaps ahead"


def rows(num_right: int, num_rows: int = 200) -> list[dict[str, Any]]:
    order = random.Random(num_right).sample(range(num_rows), num_rows)
    return [
        {"id": str(row), "label": "1", "prediction": "1" if place < num_right else "0"}
        for row, place in enumerate(order)
    ]


def test_rows_decide_where_there_is_one_seed() -> None:
    ours, theirs = system("ours", {"sst2": [85.0]}), system("theirs", {"sst2": [60.0]})
    kept = {"ours": [rows(170)], "theirs": [rows(120)]}
    record = compare(ours, theirs, lambda one, _task: kept[one["name"]])["sst2"]
    assert record["seed_p"] is None and record["row_p"] < 0.01
    assert record["low"] < 25 < record["high"]
    assert record["verdict"] == "ahead"


def test_both_tests_have_to_agree() -> None:
    # On the rows the difference is plain; over the seeds it is not.
    ours = system("ours", {"sst2": [95.0, 60.0]})
    theirs = system("theirs", {"sst2": [60.0, 61.0]})
    kept = {"ours": [rows(190), rows(120)], "theirs": [rows(120), rows(122)]}
    record = compare(ours, theirs, lambda one, _task: kept[one["name"]])["sst2"]
    assert record["row_p"] < 0.01 < record["seed_p"] == record["p"]
    assert record["verdict"] == "level"


def test_an_own_task_has_its_row_given() -> None:
    ours, theirs = system("ours", {"mine": [85.0]}), system("theirs", {"mine": [60.0]})
    kept = {"ours": [rows(170)], "theirs": [rows(120)]}
    headline = {"mine": "accuracy"}
    own = {"mine": BENCHMARKS["sst2"].model_copy(update={"name": "mine"})}
    found = compare_all([ours, theirs], headline, "theirs", lambda one, _task: kept[one["name"]], own)
    assert found["ours"]["mine"]["row_p"] is not None
    found = compare_all([ours, theirs], headline, "theirs", lambda one, _task: kept[one["name"]])
    assert found["ours"]["mine"]["verdict"] == "untested"
