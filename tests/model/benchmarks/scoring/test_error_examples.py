"""Error examples of every kind of head."""

from __future__ import annotations

from typing import Any

import pytest

from model.benchmarks.head_specs.base import MAX_CHARACTERS, excerpt
from model.benchmarks.readers.examples import Answer, ChoiceExample, SpanExample, TagExample, TextExample
from model.benchmarks.scoring.error_examples import NUM_EXAMPLES, error_examples
from model.benchmarks.table import BENCHMARKS


def text(number: int, label: Any, second: str | None = None) -> TextExample:
    return TextExample(str(number), f"text {number}", second, label)


def test_classes_have_the_most_confident_first() -> None:
    examples = [text(number, 0, "other") for number in range(4)]
    logits = [[0.0, 1.0], [2.0, 0.0], [0.0, 5.0], [0.0, 3.0]]
    records = [
        {"id": str(number), "prediction": "01"[row[1] > row[0]], "label": "0", "logits": row}
        for number, row in enumerate(logits)
    ]
    found = error_examples(BENCHMARKS["mrpc"], examples, records)
    assert (found["ranked_by"], found["num_rows"], found["num_wrong"]) == ("confidence", 4, 3)
    assert [row["id"] for row in found["rows"]] == ["2", "3", "0"]
    assert found["rows"][2]["value"] == pytest.approx(0.7311, abs=1e-4)
    assert found["rows"][0]["texts"] == [["#1 String", "text 2"], ["#2 String", "other"]]
    assert (found["rows"][0]["prediction"], found["rows"][0]["label"]) == ("1", "0")


def test_there_are_at_most_twenty_and_all_are_counted() -> None:
    examples = [text(number, 0) for number in range(50)]
    records = [{"id": str(number), "prediction": "1", "label": "0", "logits": [0.0, 1.0]} for number in range(50)]
    found = error_examples(BENCHMARKS["sst2"], examples, records)
    assert (len(found["rows"]), found["num_wrong"]) == (NUM_EXAMPLES, 50)
    assert [row["id"] for row in found["rows"]] == [str(number) for number in range(20)], "equals in their order"


def test_regressions_have_the_farthest_first() -> None:
    examples = [text(number, 3.0, "b") for number in range(3)]
    records = [{"id": str(n), "prediction": value, "label": 3.0} for n, value in enumerate((3.5, 0.5, 3.0))]
    found = error_examples(BENCHMARKS["stsb"], examples, records)
    assert found["num_wrong"] is None
    assert [(row["id"], row["value"], row["prediction"]) for row in found["rows"][:2]] == [
        ("1", 2.5, "0.50"),
        ("0", 0.5, "3.50"),
    ]


def test_choices_show_all_endings() -> None:
    example = ChoiceExample("a", "She sits.", ("one", "two", "three", "four"), 2)
    record = {"id": "a", "prediction": "1", "label": "2", "logits": [0.0, 1.0, 0.0, 0.0]}
    (row,) = error_examples(BENCHMARKS["swag"], [example], [record])["rows"]
    assert row["texts"] == [["context", "She sits."], ["0", "one"], ["1", "two"], ["2", "three"], ["3", "four"]]


def test_spans_show_the_context_around_the_answer() -> None:
    context = "x " * 1000 + "the Seine flows here. " + "y " * 1000
    start = context.index("the Seine")
    example = SpanExample("q", "Which river?", context, (Answer("the Seine", start),))
    right = {"id": "q", "prediction": "Seine", "label": ["the Seine"]}
    assert error_examples(BENCHMARKS["squad1"], [example], [right])["num_wrong"] == 0, "articles do not count"
    near, far = {**right, "prediction": "Seine flows"}, {**right, "prediction": "x"}
    found = error_examples(BENCHMARKS["squad1"], [example] * 2, [near, far])
    assert [row["prediction"] for row in found["rows"]] == ["x", "Seine flows"]
    assert [row["value"] for row in found["rows"]] == [0.0, 66.7]
    shown = dict(found["rows"][0]["texts"])["context"]
    assert "the Seine flows here" in shown and len(shown) <= MAX_CHARACTERS + 2


def test_an_unanswerable_question_is_wrong_where_it_is_answered() -> None:
    example = SpanExample("q", "Which river?", "None is named.", ())
    record = {"id": "q", "prediction": "None", "label": []}
    (row,) = error_examples(BENCHMARKS["squad2"], [example], [record])["rows"]
    assert row["label"] == "no answer"
    assert error_examples(BENCHMARKS["squad2"], [example], [{**record, "prediction": ""}])["num_wrong"] == 0


def test_tags_show_the_entities_that_differ() -> None:
    words, gold = ("Ann", "saw", "New", "York"), ("B-PER", "O", "B-LOC", "I-LOC")
    example = TagExample("s", words, gold)
    record = {"id": "s", "words": words, "prediction": ["B-PER", "O", "B-ORG", "I-ORG"], "label": gold, "part": "a"}
    (row,) = error_examples(BENCHMARKS["ner"], [example], [record])["rows"]
    assert (row["prediction"], row["label"], row["value"], row["part"]) == ("ORG New York", "LOC New York", 2.0, "a")
    plain = {**record, "prediction": ["NOUN", "VERB", "X", "X"], "label": ["NOUN", "NOUN", "X", "X"]}
    (row,) = error_examples(BENCHMARKS["ner"], [example], [plain])["rows"]
    assert (row["prediction"], row["label"]) == ("VERB saw", "NOUN saw")


def test_rows_without_a_label_are_not_judged() -> None:
    record = {"id": "1", "prediction": "1", "label": None, "logits": [0.0, 1.0]}
    assert error_examples(BENCHMARKS["sst2"], [text(1, None)], [record])["num_wrong"] == 0


def test_an_excerpt_marks_what_it_leaves_out() -> None:
    assert excerpt("a\nb") == "a b"
    long = "0123456789" * 100
    assert excerpt(long).endswith("…") and not excerpt(long).startswith("…")
    assert excerpt(long, 500).startswith("…") and excerpt(long, 500).endswith("…")
    assert excerpt(long, 999).startswith("…") and excerpt(long, 999).endswith("9")
