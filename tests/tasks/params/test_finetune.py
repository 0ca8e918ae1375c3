"""Validation of the section `finetune`: one-line messages."""

from __future__ import annotations

from typing import Any

import pytest

from model.common.errors import UserError
from tasks.params.finetune import Dependency, FinetuneParams, dependency_chain, dependency_order


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"benchmarks": {"rte": {"after": "mnl"}}}, "did you mean 'mnli'"),
        ({"benchmarks": {"rte": {"after": "mnli"}}}, "rte.after: mnli is not in finetune.benchmarks"),
        ({"benchmarks": {"rte": {"after": "rte"}}}, "rte after rte is a cycle"),
        (
            {"benchmarks": {"rte": {"after": "mnli"}, "mnli": {"after": "qnli"}, "qnli": {"after": "mnli"}}},
            "rte after mnli after qnli after mnli is a cycle",
        ),
        (
            {"benchmarks": {"rte": {"after": "mnli", "keep_head": True}, "mnli": None}},
            "rte.keep_head: rte and mnli differ in head or labels",
        ),
        ({"benchmarks": {"rte": {"aftr": "mnli"}}}, "did you mean 'after'"),
        ({"prune": {"keep": 0}}, "prune.keep"),
        ({"prune": {"after_seeds": 0}}, "prune.after_seeds"),
        ({"prune": {"kep": 0.5}}, "did you mean 'keep'"),
        ({"encoders": [{"name": "Mini LM", "path": "x"}]}, "encoders.0.name"),
        ({"encoders": [{"name": "a", "path": "/x"}]}, "below data/"),
        ({"encoders": [{"name": "a", "path": "x/../../y"}]}, "below data/"),
        ({"encoders": [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}]}, "duplicate name"),
        ({"machine": {"num_nodes": 2}}, "finetune.machine.num_nodes: a fine-tuning job runs on one node"),
        ({"seeds": [1, 2, 1]}, "contains a seed twice"),
        ({"jobs_per_device": 0}, "jobs_per_device"),
        ({"memory_bytes": -1}, "memory_bytes"),
    ],
)
def test_mistakes_are_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        FinetuneParams.parse(values, "params.yaml")
    assert "\n" not in str(caught.value)


def test_heads_that_agree_may_be_kept() -> None:
    values = {"benchmarks": {"squad2": {"after": "squad1", "keep_head": True}, "squad1": None}}
    assert FinetuneParams.parse(values, "params.yaml").dependencies()["squad2"] == Dependency("squad1", keep_head=True)


def test_a_chain_is_run_from_its_end() -> None:
    found = {"a": Dependency("b"), "b": Dependency("c"), "c": None, "d": Dependency("b")}
    assert dependency_chain("a", found) == ["a", "b", "c"]
    assert dependency_order(found) == ["c", "b", "a", "d"]


def test_ways_to_adapt_are_values_of_a_grid() -> None:
    values = {"grid": {"adapt": ["full", "lora"], "learning_rate": [1e-3]}, "benchmarks": {"rte": None}}
    found = FinetuneParams.parse(values, "params.yaml").recipes("rte")
    assert [recipe.adapt.kind for recipe in found] == ["full", "lora"]
    with pytest.raises(UserError, match="unknown 'ful'; expected one of full, lora, features"):
        FinetuneParams.parse({"grid": {"adapt": ["ful"]}, "benchmarks": {"rte": None}}, "params.yaml")
