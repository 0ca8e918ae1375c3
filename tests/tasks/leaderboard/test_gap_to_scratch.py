"""The lead of one encoder over another."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from tasks.leaderboard.gap_to_scratch import interval, lead_between


def system(name: str, means: dict[str, float], rows: dict[str, int], split: str = "dev") -> dict[str, Any]:
    return {
        "name": name,
        "split": split,
        "scores": {
            task: {"accuracy": {"mean": mean, "std": 1.0, "best": mean, "num_runs": 4}} for task, mean in means.items()
        },
        "cells": {task: {"num_train_rows": rows[task]} for task in means},
    }


HEADLINE = {"a": "accuracy", "b": "accuracy", "c": "accuracy"}
ROWS = {"a": 5000, "b": 1000, "c": 999}


def test_the_interval_is_the_paired_t_interval_of_scipy() -> None:
    differences = [3.0, -1.0, 7.5, 2.25, 4.0]
    expected = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    record = interval(differences)
    assert (record["low"], record["high"]) == pytest.approx((expected.low, expected.high), abs=1e-3)
    assert record["num_ahead"] == 4


def test_one_benchmark_has_a_lead_and_no_interval() -> None:
    assert interval([2.0]) == {"mean": 2.0, "low": None, "high": None, "num_benchmarks": 1, "num_ahead": 1}
    assert interval([])["mean"] is None


def test_small_benchmarks_are_left_out_of_the_larger_ones() -> None:
    ours = system("p", {"a": 80, "b": 70, "c": 60}, ROWS)
    theirs = system("s", {"a": 70, "b": 66, "c": 61}, ROWS)
    lead = lead_between(ours, theirs, HEADLINE)
    assert lead["per_task"]["c"]["difference"] == -1.0
    assert lead["all"]["mean"] == pytest.approx(13 / 3, abs=1e-3)
    assert lead["all"]["num_ahead"] == 2
    assert lead["large"]["tasks"] == ["a", "b"]
    assert lead["large"]["mean"] == 7.0


def test_a_benchmark_that_one_side_lacks_is_not_compared() -> None:
    lead = lead_between(system("p", {"a": 80, "b": 70}, ROWS), system("s", {"a": 70}, ROWS), HEADLINE)
    assert list(lead["per_task"]) == ["a"]
    assert lead["all"]["num_benchmarks"] == 1


def test_the_standard_error_of_a_difference_is_that_of_two_means() -> None:
    lead = lead_between(system("p", {"a": 80}, ROWS), system("s", {"a": 70}, ROWS), HEADLINE)
    assert lead["per_task"]["a"]["standard_error"] == pytest.approx((1 / 4 + 1 / 4) ** 0.5, abs=1e-4)


def test_no_difference_is_taken_across_splits() -> None:
    with pytest.raises(AssertionError):
        lead_between(system("p", {"a": 80}, ROWS), system("q", {"a": 70}, ROWS, "test"), HEADLINE)
