"""Own tasks: what a YAML file becomes, and what is said about one that is wrong, or about its data."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from datasets import ClassLabel, Dataset, Features, Value

from model.benchmarks.examples import Answer
from model.benchmarks.own import load_own, row_of
from model.benchmarks.readers import read_dev, read_test, read_train
from model.benchmarks.table import BENCHMARKS
from model.errors import UserError

NAME = "tasks/mine.yaml"
ROWS = [{"text": f"text {number}", "label": ("sour", "glad")[number % 2], "id": f"r{number}"} for number in range(40)]


def put(data_dir: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Rows as a file in the format of its ending, below data/tasks."""
    path = data_dir / "tasks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), delimiter="," if path.suffix == ".csv" else "\t")
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(text.getvalue())


def task(data_dir: Path, **content: Any) -> None:
    """data/tasks/mine.yaml; None takes a key out."""
    (data_dir / "tasks").mkdir(parents=True, exist_ok=True)
    content = {"head": "classes", "train": "train.csv", "dev": "dev.csv", **content}
    kept = {key: value for key, value in content.items() if value is not None}
    (data_dir / NAME).write_text(yaml.safe_dump(kept))


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
    assert (row.metrics, row.labels, row.num_outputs) == (("spearman", "pearson"), (), 1)


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
    assert part.skipped == ("train.jsonl: row 16: 1 endings where 3 were expected",)


def test_spans_as_text_and_as_the_hub_has_them(tmp_path: Path) -> None:
    context = "Ann met Ben. Ben left."
    rows = [{"question": "Who left?", "context": context, "answers": "Ben"}] * 20
    put(tmp_path, "train.csv", [*rows, {"question": "Who left?", "context": context, "answers": "Cy"}])
    put(tmp_path, "dev.csv", [{"question": "Who?", "context": context, "answers": "Ben", "answer_start": 13}])
    task(tmp_path, head="span")
    row = row_of(NAME, tmp_path)
    part, dev = read_train(row, tmp_path), read_dev(row, tmp_path)[""]
    assert part.examples[0].answers == (Answer("Ben", 8),), "without a place the first one is meant"
    assert (part.num_skipped, part.skipped) == (1, ("train.csv: row 22: the answer is not in its context",))
    assert dev.examples[0].answers == (Answer("Ben", 13),)
    answers = {"text": ["Ben", "Ann"], "answer_start": [8, 0]}
    put(tmp_path, "train.parquet", [{"question": "Who?", "context": context, "answers": answers}] * 3)
    put(tmp_path, "dev.jsonl", [{"question": "Who?", "context": context, "answers": {"text": [], "answer_start": []}}])
    task(tmp_path, head="span", train="train.parquet", dev="dev.jsonl", unanswerable=True)
    row = row_of(NAME, tmp_path)
    assert read_train(row, tmp_path).examples[0].answers == (Answer("Ben", 8), Answer("Ann", 0))
    assert read_dev(row, tmp_path)[""].examples[0].answers == ()
    with pytest.raises(UserError, match=r"dev.jsonl: row 1: no answer; expected at least one"):
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
    assert part.skipped == ("train.txt: row 36: 1 column where two or more were expected (word first, tag last)",)
    with pytest.raises(UserError, match=r"train.txt: row 36: 1 column"):
        read_dev(row, tmp_path)
    put(tmp_path, "train.jsonl", [{"words": ["He", "left"], "tags": ["PRON", "VERB"]}] * 3)
    put(tmp_path, "dev.csv", [{"words": "He left", "tags": "PRON VERB"}])
    task(tmp_path, head="tags", train="train.jsonl")
    row = row_of(NAME, tmp_path)
    assert (row.labels, row.metrics) == (("PRON", "VERB"), ("accuracy",)), "no entities, so words are counted"
    assert read_dev(row, tmp_path)[""].examples[0].tags == ("PRON", "VERB")


def test_malformed_rows_are_counted_and_named(tmp_path: Path) -> None:
    good = [json.dumps(row) for row in ROWS]
    bad = ["{oops", '"text"', '{"text": null, "label": "glad"}', '{"text": "a"}', '{"text": " ", "label": "glad"}']
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/train.jsonl").write_text("\n".join([*good, *good, *bad]))
    put(tmp_path, "dev.csv", ROWS)
    task(tmp_path, train="train.jsonl")
    row = row_of(NAME, tmp_path)
    part = read_train(row, tmp_path)
    assert (len(part.examples), part.num_skipped) == (80, 5)
    assert [line.split(": ", 2)[1:] for line in part.skipped] == [
        ["row 81", "not JSON (Expecting property name enclosed in double quotes)"],
        ["row 82", "a JSON str where an object was expected"],
        ["row 83", "expected text in column 'text', found null"],
        ["row 84", "no label"],
        ["row 85", "an empty text in column 'text'"],
    ]
    assert part.remarks == (
        "rows with the name of another row: 40 (train.jsonl: row 41, train.jsonl: row 42, train.jsonl: row 43, "
        "train.jsonl: row 44, train.jsonl: row 45, ...)",
    )
    (tmp_path / "tasks/train.jsonl").write_text("\n".join([*good, *bad]))
    with pytest.raises(UserError, match=r"5 of 45 rows are malformed; is it the right file\? The first: .*row 41: not"):
        read_train(row, tmp_path)


def test_development_rows_are_never_left_out(tmp_path: Path) -> None:
    put(tmp_path, "train.csv", ROWS)
    task(tmp_path)
    for odd, message in (
        ({"text": "a", "label": "", "id": "x"}, r"dev.csv: row 42: no label; expected glad, sour; labels found"),
        ({"text": "a", "label": "mild", "id": "x"}, r"row 42: unknown label 'mild'; expected glad, sour; .*'mild'"),
    ):
        put(tmp_path, "dev.csv", [*ROWS, odd])
        with pytest.raises(UserError, match=message):
            read_dev(row_of(NAME, tmp_path), tmp_path)
    put(tmp_path, "dev.csv", [*ROWS, {"text": "", "label": "sour", "id": "r1"}])
    part = read_dev(row_of(NAME, tmp_path), tmp_path)[""]
    assert len(part.examples) == 41
    assert part.remarks == (
        "rows with an empty text in column 'text': 1 (dev.csv: row 42)",
        "rows with the name of another row: 1 (dev.csv: row 42)",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hed": "classes"}, r"unknown key 'hed'; did you mean 'head'\?"),
        ({"head": "clases"}, r"head: Input should be 'classes'.*'clases'"),
        ({"columns": {"frist": "text"}}, r"columns: unknown 'frist' for classes; did you mean 'first'\?"),
        ({"columns": {"words": "text"}}, r"columns: unknown 'words' for classes; known: first, second, label, id"),
        ({"columns": {"first": "review"}}, r"row 1: no column 'review'; expected .*found 'text', 'label'"),
        ({"columns": {"label": "mood"}}, r"train.csv: row 1: no column 'mood'; expected mood, found 'text', 'label'"),
        ({"columns": {"first": ["a", "b"]}}, r"columns.first: one column was expected, got a list"),
        (
            {"labels": ["glad", "mild"]},
            r"row 2: unknown label 'sour'; expected glad, mild; labels found: 'glad', 'sour'",
        ),
        ({"labels": [True, False]}, r"labels: .*a bare yes, no, on, off, true or false as True: put it in quotes"),
        ({"labels": ["glad", "glad"]}, r"labels: one of them stands there twice"),
        (
            {"columns": {"label": "id"}},
            r"train.csv: 40 different labels in 40 rows of column 'id' \(r0, r1, r10",
        ),
        ({"positive": "sad", "metrics": ["f1"]}, r"positive: 'sad' is no label; the labels are glad, sour"),
        ({"metrics": ["f1"]}, r"f1 is that of one label: name it with `positive`"),
        ({"metrics": ["acuracy"]}, r"metrics: unknown 'acuracy'; did you mean 'accuracy'\?"),
        ({"metrics": ["exact"]}, r"metrics: unknown 'exact'; known: accuracy, f1, macro_f1, matthews"),
        ({"recipe": {"learning_rat": 1e-3}}, r"recipe: unknown key 'learning_rat'; did you mean 'learning_rate'\?"),
        ({"grid": {"batch_size": [16, 0]}}, r"grid: batch_size"),
        ({"train": "nowhere.csv"}, r"train: no such file: .*tasks/nowhere.csv"),
        ({"train": "train.xls"}, r"train.xls: unknown ending; expected one of .csv, .tsv"),
        ({"train": "../../train.csv"}, r"train: '../../train.csv' lies outside the data folder"),
        ({"train": None}, r"neither train nor folder says where the training rows are"),
        ({"dev": None}, r"no development rows; name a file"),
        ({"dev_share": 0.1}, r"dev and dev_share: give one of them"),
        ({"folder": "x"}, r"folder names all parts"),
        ({"folder": "x", "train": None, "dev": None}, r"folder: no split 'train' in .*tasks/x"),
        ({"head": "regression", "labels": ["a"]}, r"labels: regression has no labels; leave it out"),
        ({"head": "regression"}, r"row 2: expected a number in column 'label', got 'sour'"),
        ({"head": "tags", "columns": {"words": "text", "tags": "label"}}, r"no labels .*row 2: 1 tags for 2 words"),
        ({"head": "tags", "metrics": ["f1"], "columns": {"words": "label", "tags": "label"}}, r"found 'glad'"),
        ({"head": "choice", "columns": {"context": "text", "endings": ["id", "label"]}, "labels": ["a"]}, r"1 of them"),
    ],
)
def test_a_wrong_task_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    for name in ("train.csv", "dev.csv"):
        put(tmp_path, name, ROWS)
    (tmp_path / "tasks/train.xls").write_bytes(b"\xd0\xcf")
    task(tmp_path, **change)
    with pytest.raises(UserError, match=message) as caught:
        row = row_of(NAME, tmp_path)
        read_dev(row, tmp_path)
        read_train(row, tmp_path)
    assert "\n" not in str(caught.value)


def test_only_one_label_or_far_too_many_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "train.csv", [{"text": "a", "label": "x"}] * 3)
    task(tmp_path, dev="train.csv")
    with pytest.raises(UserError, match=r"train.csv: only the label 'x' in column 'label'; expected two or more"):
        row_of(NAME, tmp_path)
    put(tmp_path, "train.csv", [{"text": "a", "label": number / 7} for number in range(1100)])
    with pytest.raises(UserError, match=r"1,100 different labels in 1,100 rows of column 'label' .*`head: regression`"):
        row_of(NAME, tmp_path)


def test_names_and_places_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    put(tmp_path, "train.csv", ROWS)
    task(tmp_path, dev="train.csv")
    content = (tmp_path / NAME).read_text()
    for name, message in (
        ("tasks/none.yaml", r"none.yaml: no such file"),
        ("../out.yaml", r"lies outside the data folder"),
        ("tasks/rte.yaml", r"rte is a benchmark of the table"),
        ("tasks/two words.yaml", r"the file's name names the task"),
    ):
        if "none" not in name:
            (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=message):
            load_own(name, tmp_path)
    (tmp_path / NAME).write_text("head: [classes\n")
    with pytest.raises(UserError, match=r"mine.yaml: while parsing") as caught:
        load_own(NAME, tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / NAME).write_text("")
    with pytest.raises(UserError, match=r"mine.yaml: document: "):
        load_own(NAME, tmp_path)


def test_a_name_without_yaml_is_one_of_the_table(tmp_path: Path) -> None:
    assert row_of("rte", tmp_path) is BENCHMARKS["rte"]
    with pytest.raises(UserError, match="did you mean 'sst2'"):
        row_of("sst-2", tmp_path)
