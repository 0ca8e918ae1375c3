"""A system as MLflow takes it: flat, and with the same names whatever the recipes are."""

from __future__ import annotations

import re

from tasks.leaderboard.board import compose, flat_metrics, flat_params, flat_tags
from tasks.leaderboard.formatting import recipe
from tasks.leaderboard.inputs import read_inputs
from tasks.leaderboard.schema import SystemCost


def test_metrics_tags_and_parameters_are_flat(metrics, encoders, benchmarks) -> None:
    board = compose(read_inputs(metrics.finetune, metrics.pretrain, encoders, benchmarks), encoders, benchmarks)
    reference, other = board.measured[:2]
    cost = {"total": {"seconds": 12.5, "num_jobs": 78, "num_timed": 78}, "tasks": {"mrpc": {"seconds": 2.5}}}
    found = flat_metrics(board, other, SystemCost.parse(cost, "cost"))
    score = other.scores["mrpc"]["f1"]
    assert [found[f"dev/mrpc/f1{part}"] for part in ("", "_std", "_median", "_best")] == [
        getattr(score, part) for part in ("mean", "std", "median", "best")
    ]
    assert found["dev/mrpc/accuracy"] == other.scores["mrpc"]["accuracy"].mean
    assert found["average"] == other.average
    assert found["vs_reference/mrpc"] == board.comparisons["from-scratch"]["mrpc"].difference
    assert (found["spent/seconds"], found["spent/seconds/mrpc"]) == (12.5, 2.5)
    assert not any(name.startswith("vs_reference") for name in flat_metrics(board, reference, None))
    tags = flat_tags(board, reference), flat_tags(board, other)
    assert [one["cloze.reference"] for one in tags] == ["yes", "no"]
    assert (
        tags[0]["cloze.kind"] == "system" and tags[0]["cloze.split"] == "dev" and tags[0]["cloze.coverage"] == "whole"
    )
    assert "behind" in tags[1]["cloze.against_reference"]


def test_a_setting_is_one_parameter_with_its_exceptions(metrics, encoders, benchmarks) -> None:
    content = metrics.read("sample-mini", "squad1")
    for job in content["jobs"]:
        job["recipe"] |= {"max_length": 384, "adapt": {"kind": "lora", "rank": 4}}
    metrics.write("sample-mini", "squad1", content)
    board = compose(read_inputs(metrics.finetune, metrics.pretrain, encoders, benchmarks), encoders, benchmarks)
    one, other = (flat_params(system) for system in board.measured[:2])
    assert one["recipe.max_length"] == "64; squad1 384"
    assert other["recipe.max_length"] == "64"
    assert one["recipe.adapt.kind"] == "None; squad1 lora"
    assert one.keys() - other.keys() == {"recipe.adapt.kind", "recipe.adapt.rank"}
    assert recipe(board.measured[0].cells["squad1"].recipe).endswith("LoRA of rank 4")
    assert one["seeds"] == "0 1 2"
    assert one["rows"] == "all rows"


def test_names_suit_mlflow(metrics, encoders, benchmarks) -> None:
    board = compose(read_inputs(metrics.finetune, metrics.pretrain, encoders, benchmarks), encoders, benchmarks)
    system = board.measured[0]
    board.headline["my task: a%b"] = "accuracy"
    system.scores["my task: a%b"], system.cells["my task: a%b"] = (
        system.scores["sst2"],
        system.cells["sst2"],
    )
    allowed = re.compile(r"[\w./-]+")
    assert all(allowed.fullmatch(name) for name in (*flat_metrics(board, system, None), *flat_params(system)))
