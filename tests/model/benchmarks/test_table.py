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


def test_labels_that_are_numbers_have_names() -> None:
    names = {name: row.label_names for name, row in BENCHMARKS.items() if row.label_names}
    assert names == {
        "cola": {"0": "unacceptable", "1": "acceptable"},
        "sst2": {"0": "negative", "1": "positive"},
        "mrpc": {"0": "not_equivalent", "1": "equivalent"},
        "qqp": {"0": "not_duplicate", "1": "duplicate"},
        "wnli": {"0": "not_entailment", "1": "entailment"},
    }, "SWAG's are positions, the others are words"
    row = BENCHMARKS["sst2"]
    assert [row.label_of(one) for one in ("positive", "1", "other")] == ["1", "1", "other"]
    assert HEAD_SPECS["classes"].parse_prediction(row, "line 1", "negative", None) == 0


def test_classes_are_counted_by_their_names() -> None:
    answers = [("0", "0"), ("0", "1"), ("1", "1"), ("1", "1"), ("1", "0")]
    records = [{"label": label, "prediction": prediction} for label, prediction in answers]
    found = HEAD_SPECS["classes"].class_counts(BENCHMARKS["sst2"], records)
    assert found == (["negative", "positive"], [(1, 2, 2), (2, 3, 3)], [[1, 1], [1, 2]])
    assert HEAD_SPECS["choice"].class_counts(BENCHMARKS["swag"], records) is None
    assert HEAD_SPECS["regression"].class_counts(BENCHMARKS["stsb"], records) is None
    assert HEAD_SPECS["span"].class_counts(BENCHMARKS["squad1"], records) is None


def test_entities_are_counted_by_type() -> None:
    records = [
        {"label": ["B-PER", "I-PER", "O", "B-LOC"], "prediction": ["B-PER", "I-PER", "O", "B-ORG"]},
        {"label": ["B-PER", "O"], "prediction": ["B-PER", "I-PER"]},  # one word too long
    ]
    found = HEAD_SPECS["tags"].class_counts(BENCHMARKS["ner"], records)
    assert found == (["LOC", "ORG", "PER"], [(0, 0, 1), (0, 1, 0), (1, 2, 2)], None)
