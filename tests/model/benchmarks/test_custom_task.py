"""Own tasks: what a YAML file becomes, and what is said about one that is wrong, or about its data."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from model.benchmarks.custom_task import row_of
from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.readers.examples import Answer
from model.benchmarks.splits import read_dev, read_test, read_train
from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from tests.model.benchmarks.custom_files import NAME, ROWS, put, task


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_one_task_in_every_format(tmp_path: Path, ending: str) -> None:
    put(tmp_path, f"train.{ending}", ROWS)
    put(tmp_path, f"dev.{ending}", ROWS[:6])
    put(tmp_path, f"test.{ending}", [{"text": "a", "id": "t1"}])
    task(tmp_path, title="Mine", train=f"train.{ending}", dev=f"dev.{ending}", test=f"test.{ending}")
    row = row_of(NAME, tmp_path)
    assert (row.name, row.title, row.labels, row.metrics) == ("mine", "Mine", ("glad", "sour"), ("accuracy",))
    train, dev, test = read_train(row, tmp_path), read_dev(row, tmp_path)[""], read_test(row, tmp_path)[""]
    assert [(one.id, one.first, one.label) for one in train.examples[:2]] == [("r0", "text 0", 1), ("r1", "text 1", 0)]
    assert (len(train.examples), len(dev.examples), train.num_skipped, train.remarks) == (40, 6, 0, ())
    assert (test.examples[0].id, test.examples[0].label) == ("t1", None)


def test_labels_are_fixed_in_their_order_and_numbers_by_size(tmp_path: Path) -> None:
    rows = [{"text": f"t{number}", "label": number} for number in (10, 9, 1, 10)]
    put(tmp_path, "train.jsonl", rows)
    put(tmp_path, "dev.jsonl", rows)
    task(tmp_path, train="train.jsonl", dev="dev.jsonl")
    assert row_of(NAME, tmp_path).labels == ("1", "9", "10")
    task(tmp_path, train="train.jsonl", dev="dev.jsonl", labels=[9, 10, 1])
    row = row_of(NAME, tmp_path)
    assert row.labels == ("9", "10", "1") and [one.label for one in read_train(row, tmp_path).examples] == [1, 0, 2, 1]


def test_files_without_a_header_line(tmp_path: Path) -> None:
    task(tmp_path, train="train.csv", dev="dev.csv", header=["text", "label"])
    for name in ("train.csv", "dev.csv"):
        (tmp_path / "tasks" / name).write_text("fine,glad\nawful,sour\n")
    row = row_of(NAME, tmp_path)
    assert row.labels == ("glad", "sour")
    assert [(one.first, one.label) for one in read_train(row, tmp_path).examples] == [("fine", 0), ("awful", 1)]
    task(tmp_path, train="train.csv", dev="dev.csv")
    with pytest.raises(UserError, match="no column 'label'.* if a custom task's file has no header line, set `header`"):
        row_of(NAME, tmp_path)


def test_a_folder_of_the_hub_with_names_in_its_files(tmp_path: Path) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    for split in ("train", "validation", "test"):
        path = tmp_path / "tasks" / "films" / "plain_text" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        marks = [-1, -1] if split == "test" else [1, 0]
        rows = [{"text": f"{split} {mark}", "label": mark} for mark in marks]
        Dataset.from_list(rows, features=features).to_parquet(path)
    task(tmp_path, train=None, dev=None, folder="films/plain_text")
    row = row_of(NAME, tmp_path)
    assert row.labels == ("neg", "pos")
    assert [(one.first, one.label) for one in read_dev(row, tmp_path)[""].examples] == [
        ("validation 1", 1),
        ("validation 0", 0),
    ]
    assert [one.label for one in read_test(row, tmp_path)[""].examples] == [None, None]


def test_numbers_with_names_from_the_yaml(tmp_path: Path) -> None:
    rows = [{"text": f"t{number}", "label": number % 2} for number in range(4)]
    for ending in ("csv", "parquet"):
        put(tmp_path, f"train.{ending}", rows)
        task(tmp_path, train=f"train.{ending}", dev=f"train.{ending}", label_names=["pos", "neg"])
        row = row_of(NAME, tmp_path)
        assert row.labels == ("neg", "pos")
        assert [one.label for one in read_train(row, tmp_path).examples] == [1, 0, 1, 0]


def test_a_share_of_the_training_rows_is_always_the_same(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": number % 2} for number in range(400)]
    put(tmp_path, "train.csv", [*rows, *rows[:40]])
    task(tmp_path, dev=None, dev_share=0.25)
    row = row_of(NAME, tmp_path)
    train, dev = read_train(row, tmp_path).examples, read_dev(row, tmp_path)[""].examples
    assert len(train) + len(dev) == 440 and 80 <= len(dev) <= 140
    assert not {one.first for one in train} & {one.first for one in dev}, "equal texts are on one side"
    put(tmp_path, "train.csv", [*rows, *rows[:40], {"text": "new", "label": 0}])
    more = read_dev(row, tmp_path)[""].examples
    assert {one.first for one in more} - {"new"} == {one.first for one in dev}, "a new row moves no other"


def test_pairs_and_scores(tmp_path: Path) -> None:
    rows = [{"a": f"a{number}", "b": f"b{number}", "score": number / 2} for number in range(20)]
    put(tmp_path, "train.csv", rows)
    task(tmp_path, head="regression", dev="train.csv", columns={"first": "a", "second": "b", "label": "score"})
    row = row_of(NAME, tmp_path)
    example = read_train(row, tmp_path).examples[3]
    assert (example.first, example.second, example.label) == ("a3", "b3", 1.5)
    assert (row.metrics, row.labels, HEAD_SPECS[row.head].num_outputs(row)) == (("spearman", "pearson"), (), 1)


def test_choices_in_columns_and_in_a_list(tmp_path: Path) -> None:
    columns = [{"q": "Who?", "one": "Ann", "two": "Ben", "right": letter} for letter in "ABAB"]
    put(tmp_path, "train.csv", columns)
    names = {"context": "q", "endings": ["one", "two"], "label": "right"}
    task(tmp_path, head="choice", dev="train.csv", labels=["A", "B"], columns=names)
    row = row_of(NAME, tmp_path)
    example = read_train(row, tmp_path).examples[1]
    assert (example.context, example.endings, example.label) == ("Who?", ("Ann", "Ben"), 1)
    lists = [{"context": "Who?", "endings": ["Ann", "Ben", "Cy"], "label": 2}] * 15
    put(tmp_path, "train.jsonl", [*lists, {"context": "Who?", "endings": ["Ann"], "label": 0}])
    put(tmp_path, "dev.jsonl", lists[:2])
    task(tmp_path, head="choice", train="train.jsonl", dev="dev.jsonl")
    row = row_of(NAME, tmp_path)
    part = read_train(row, tmp_path)
    assert row.labels == ("0", "1", "2") and part.examples[0].label == 2
    assert part.skipped == ("train.jsonl: line 16: 1 endings where 3 were expected",)


def test_spans_as_text_and_as_the_hub_has_them(tmp_path: Path) -> None:
    context = "Ann met Ben. Ben left."
    rows = [{"question": "Who left?", "context": context, "answers": "Ben"}] * 20
    put(tmp_path, "train.csv", [*rows, {"question": "Who left?", "context": context, "answers": "Cy"}])
    put(tmp_path, "dev.csv", [{"question": "Who?", "context": context, "answers": "Ben", "answer_start": 13}])
    task(tmp_path, head="span")
    row = row_of(NAME, tmp_path)
    part, dev = read_train(row, tmp_path), read_dev(row, tmp_path)[""]
    assert part.examples[0].answers == (Answer("Ben", 8),), "without a place the first one is meant"
    assert (part.num_skipped, part.skipped) == (1, ("train.csv: line 22: the answer is not in its context",))
    assert dev.examples[0].answers == (Answer("Ben", 13),)
    answers = {"text": ["Ben", "Ann"], "answer_start": [8, 0]}
    put(tmp_path, "train.parquet", [{"question": "Who?", "context": context, "answers": answers}] * 3)
    put(tmp_path, "dev.jsonl", [{"question": "Who?", "context": context, "answers": {"text": [], "answer_start": []}}])
    task(tmp_path, head="span", train="train.parquet", dev="dev.jsonl", unanswerable=True)
    row = row_of(NAME, tmp_path)
    assert read_train(row, tmp_path).examples[0].answers == (Answer("Ben", 8), Answer("Ann", 0))
    assert read_dev(row, tmp_path)[""].examples[0].answers == ()
    with pytest.raises(UserError, match=r"dev.jsonl: line 1: no answer; expected at least one"):
        read_dev(row.model_copy(update={"unanswerable": False}), tmp_path)


def test_tags_in_lines_lists_and_text(tmp_path: Path) -> None:
    lines = "Ann I-PER\nmet O\nBen I-PER\n\nHe O\nleft O\n\n" * 5
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/train.txt").write_text(lines + "broken\nBen I-PER\n")
    task(tmp_path, head="tags", train="train.txt", dev="train.txt")
    row = row_of(NAME, tmp_path)
    assert row.labels == ("O", "B-PER", "I-PER"), "IOB1 is brought to IOB2, which needs B-PER"
    part = read_train(row, tmp_path)
    assert part.examples[0].tags == ("B-PER", "O", "B-PER") and row.metrics == ("f1", "precision", "recall")
    assert part.skipped == ("train.txt: line 36: 1 column where two or more were expected (word first, tag last)",)
    with pytest.raises(UserError, match=r"train.txt: line 36: 1 column"):
        read_dev(row, tmp_path)
    put(tmp_path, "train.jsonl", [{"words": ["He", "left"], "tags": ["PRON", "VERB"]}] * 3)
    put(tmp_path, "dev.csv", [{"words": "He left", "tags": "PRON VERB"}])
    task(tmp_path, head="tags", train="train.jsonl")
    row = row_of(NAME, tmp_path)
    assert (row.labels, row.metrics) == (("PRON", "VERB"), ("accuracy",)), "no entities, so words are counted"
    assert read_dev(row, tmp_path)[""].examples[0].tags == ("PRON", "VERB")


def test_a_name_without_yaml_is_one_of_the_table(tmp_path: Path) -> None:
    assert row_of("rte", tmp_path) is BENCHMARKS["rte"]
    with pytest.raises(UserError, match="did you mean 'sst2'"):
        row_of("sst-2", tmp_path)
