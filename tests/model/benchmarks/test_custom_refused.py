"""Invalid custom tasks and data: what is counted and listed, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.benchmarks.custom_task import load_custom, row_of
from model.benchmarks.splits import read_dev, read_train
from model.common.errors import UserError
from tests.model.benchmarks.custom_files import NAME, ROWS, put, task


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
        ["line 81", "not JSON (Expecting property name enclosed in double quotes)"],
        ["line 82", "a JSON str where an object was expected"],
        ["line 83", "expected text in column 'text', found null"],
        ["line 84", "no label"],
        ["line 85", "an empty text in column 'text'"],
    ]
    assert part.remarks == (
        "rows with the name of another row: 40 (train.jsonl: line 41, train.jsonl: line 42, train.jsonl: line 43, "
        "train.jsonl: line 44, train.jsonl: line 45, ...)",
    )
    (tmp_path / "tasks/train.jsonl").write_text("\n".join([*good, *bad]))
    with pytest.raises(
        UserError, match=r"5 of 45 rows are malformed; check that it is the right file. First row: .*line 41: not"
    ):
        read_train(row, tmp_path)


def test_development_rows_are_never_left_out(tmp_path: Path) -> None:
    put(tmp_path, "train.csv", ROWS)
    task(tmp_path)
    for odd, message in (
        ({"text": "a", "label": "", "id": "x"}, r"dev.csv: line 42: no label; expected glad, sour; labels found"),
        ({"text": "a", "label": "mild", "id": "x"}, r"line 42: unknown label 'mild'; expected glad, sour; .*'mild'"),
    ):
        put(tmp_path, "dev.csv", [*ROWS, odd])
        with pytest.raises(UserError, match=message):
            read_dev(row_of(NAME, tmp_path), tmp_path)
    put(tmp_path, "dev.csv", [*ROWS, {"text": "", "label": "sour", "id": "r1"}])
    part = read_dev(row_of(NAME, tmp_path), tmp_path)[""]
    assert len(part.examples) == 41
    assert part.remarks == (
        "rows with an empty text in column 'text': 1 (dev.csv: line 42)",
        "rows with the name of another row: 1 (dev.csv: line 42)",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hed": "classes"}, r"unknown key 'hed'; did you mean 'head'\?"),
        ({"head": "clases"}, r"head: .*unknown 'clases'; did you mean 'classes'\?"),
        ({"columns": {"frist": "text"}}, r"columns: unknown 'frist' for classes; did you mean 'first'\?"),
        ({"columns": {"words": "text"}}, r"columns: unknown 'words' for classes; known: first, second, label, id"),
        ({"columns": {"first": "review"}}, r"line 1: no column 'review'; expected .*found 'text', 'label'"),
        ({"columns": {"label": "mood"}}, r"train.csv: line 1: no column 'mood'; expected mood, found 'text', 'label'"),
        ({"columns": {"first": ["a", "b"]}}, r"columns.first: expected one column, got a list"),
        (
            {"labels": ["glad", "mild"]},
            r"line 2: unknown label 'sour'; expected glad, mild; labels found: 'glad', 'sour'",
        ),
        ({"labels": [True, False]}, r"labels: .*a bare yes, no, on, off, true or false as True: put it in quotes"),
        ({"labels": ["glad", "glad"]}, r"labels: a label is listed twice"),
        (
            {"columns": {"label": "id"}},
            r"train.csv: 40 different labels in 40 rows of column 'id' \(r0, r1, r10",
        ),
        ({"positive": "sad", "metrics": ["f1"]}, r"positive: 'sad' is not a label; the labels are glad, sour"),
        ({"metrics": ["f1"]}, r"f1 needs a label: set `positive`"),
        ({"metrics": ["acuracy"]}, r"metrics: unknown 'acuracy'; did you mean 'accuracy'\?"),
        ({"metrics": ["exact"]}, r"metrics: unknown 'exact'; known: accuracy, f1, macro_f1, matthews"),
        ({"recipe": {"learning_rat": 1e-3}}, r"recipe: unknown key 'learning_rat'; did you mean 'learning_rate'\?"),
        ({"grid": {"batch_size": [16, 0]}}, r"grid: batch_size"),
        ({"train": "nowhere.csv"}, r"train: no such file: .*tasks/nowhere.csv"),
        ({"train": "train.xls"}, r"train.xls: unknown ending; expected one of .csv, .tsv"),
        ({"train": "../../train.csv"}, r"train: '../../train.csv' is outside the data folder"),
        ({"train": None}, r"no training rows; set train or folder"),
        ({"dev": None}, r"no development rows; set dev to a file"),
        ({"dev_share": 0.1}, r"dev and dev_share cannot both be set; remove one"),
        ({"folder": "x"}, r"folder replaces train, dev and test; remove them"),
        ({"folder": "x", "train": None, "dev": None}, r"folder: no split 'train' in .*tasks/x"),
        ({"head": "regression", "labels": ["a"]}, r"labels: regression has no labels; remove it"),
        ({"head": "regression"}, r"line 2: expected a number in column 'label', got 'sour'"),
        ({"head": "tags", "columns": {"words": "text", "tags": "label"}}, r"no labels .*line 2: 1 tags for 2 words"),
        ({"head": "tags", "metrics": ["f1"], "columns": {"words": "label", "tags": "label"}}, r"found 'glad'"),
        ({"head": "choice", "columns": {"context": "text", "endings": ["id", "label"]}, "labels": ["a"]}, r"1 labels"),
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
        ("../out.yaml", r"is outside the data folder"),
        ("tasks/rte.yaml", r"rte is a built-in benchmark; rename the file"),
        ("tasks/two words.yaml", r"a task's file name may contain only letters"),
    ):
        if "none" not in name:
            (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=message):
            load_custom(name, tmp_path)
    for text, message in (
        ("head: [classes\n", r"mine.yaml:2: expected ',' or '\]'"),
        (
            "a: [&x [1, 1, 1, 1], &y [*x, *x, *x, *x], *y" + ", *y" * 2000 + "]",
            r"mine.yaml:1: a\.\d+: more than 20,000",
        ),
        ("title: !!python/name:os.system", r"mine.yaml:1: title: remove the tag"),
        (f"dev_share: {'9' * 5000}", r"mine.yaml: dev_share: "),
    ):
        (tmp_path / NAME).write_text(text)
        with pytest.raises(UserError, match=message) as caught:
            load_custom(NAME, tmp_path)
        assert len(str(caught.value).splitlines()) == 1 + text.startswith("dev_share"), "which has no head, either"
    (tmp_path / NAME).write_text("")
    with pytest.raises(UserError, match=r"mine.yaml: expected keys and values"):
        load_custom(NAME, tmp_path)
