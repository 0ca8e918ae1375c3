"""The table holds what the paper says, and its rows fit together."""

from __future__ import annotations

import pytest

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.table import BENCHMARKS, find, paper_recipe
from model.common.errors import UserError


def test_all_thirteen_in_the_order_of_the_tables() -> None:
    assert list(BENCHMARKS) == [
        *("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"),
        *("squad1", "squad2", "swag", "ner"),
    ]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_rows_are_whole(name: str) -> None:
    row = BENCHMARKS[name]
    recipe = paper_recipe(row)
    assert HEAD_SPECS[row.head].num_outputs(row) >= 1
    assert len(set(row.labels)) == len(row.labels)
    assert row.positive is None or row.positive in row.labels
    assert ("f1" in row.metrics) == (row.positive is not None or row.head in ("span", "tags"))
    for field, values in row.grid.items():
        assert getattr(recipe, field) in values, f"{name}: the recipe's {field} is not in its grid"


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("cola", "matthews"),
        ("mrpc", "f1"),
        ("qqp", "f1"),
        ("stsb", "spearman"),
        ("mnli", "accuracy"),
        ("squad2", "f1"),
    ],
)
def test_headline_metrics_are_those_of_the_papers_tables(name: str, headline: str) -> None:
    assert BENCHMARKS[name].headline == headline


def test_squad_recipes_of_the_paper() -> None:
    first, second = paper_recipe(find("squad1")), paper_recipe(find("squad2"))
    assert (first.num_epochs, first.learning_rate, first.batch_size) == (3, 5e-5, 32)
    assert (second.num_epochs, second.learning_rate, second.batch_size) == (2, 5e-5, 48)
    assert (first.max_length, first.doc_stride, first.max_query_length, first.max_answer_length) == (
        384,
        128,
        64,
        30,
    )


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown benchmark 'sst-2'; did you mean 'sst2'"):
        find("sst-2")
