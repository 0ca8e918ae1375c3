"""The sample world: the pinned bytes, the original formats, and what its text has to offer."""

from __future__ import annotations

import bz2
import hashlib
import json
from pathlib import Path

import pytest

from model.benchmarks.splits import read_dev, read_train
from model.benchmarks.table import BENCHMARKS
from model.common.files import digest_of_folder
from tasks.project.yaml_files import read_yaml
from tasks.sample import SMALL, SampleSettings, is_sample, make_sample


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    make_sample(folder, SampleSettings(**SMALL))
    return folder


def dvc_digest(folder: Path) -> str:
    """The digest that DVC gives a folder: MD5 of the list of its files and theirs."""
    entries = [
        {"md5": hashlib.md5(path.read_bytes()).hexdigest(), "relpath": path.relative_to(folder).as_posix()}
        for path in folder.rglob("*")
        if path.is_file()
    ]
    entries.sort(key=lambda entry: entry["relpath"])
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode()).hexdigest() + ".dir"


def test_data_dvc_pins_the_sample(root: Path, tmp_path: Path) -> None:
    make_sample(tmp_path / "data", SampleSettings())
    [out] = read_yaml(root / "data.dvc")["outs"]
    assert dvc_digest(tmp_path / "data") == out["md5"], "after a change of the sample: cloze sample, dvc add data"


def test_a_seed_decides_every_byte(small: Path, tmp_path: Path) -> None:
    make_sample(tmp_path / "again", SampleSettings(**SMALL))
    make_sample(tmp_path / "other", SampleSettings(**SMALL, seed=1))
    assert digest_of_folder(tmp_path / "again") == digest_of_folder(small)
    assert digest_of_folder(tmp_path / "other") != digest_of_folder(small)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_reads_without_a_skipped_row(small: Path, name: str) -> None:
    train, dev = read_train(BENCHMARKS[name], small), read_dev(BENCHMARKS[name], small)
    assert train.num_skipped == 0
    assert len(train.examples) >= 32
    assert all(len(part.examples) >= 20 for part in dev.values())


def header(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n", 1)[0].split("\t")


def test_columns_are_those_of_the_original_files(small: Path) -> None:
    glue = small / "glue"
    assert header(glue / "MRPC" / "train.tsv") == ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    assert header(glue / "QQP" / "train.tsv") == ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
    assert len(header(glue / "STS-B" / "train.tsv")) == 10
    assert len(header(glue / "MNLI" / "train.tsv")) == 12
    assert header(glue / "MNLI" / "dev_matched.tsv")[-1] == "gold_label"
    assert len(header(glue / "CoLA" / "train.tsv")) == 4  # no header: the first row
    assert header(glue / "SST-2" / "test.tsv") == ["index", "sentence"]
    squad = json.loads((small / "squad" / "dev-v2.0.json").read_text())
    questions = [qa for article in squad["data"] for text in article["paragraphs"] for qa in text["qas"]]
    assert {question["is_impossible"] for question in questions} == {True, False}
    words = (small / "conll2003" / "train.txt").read_text().split("\n")
    assert words[0] == "-DOCSTART- -X- -X- O"
    assert {len(line.split()) for line in words} == {0, 4}


def test_the_dump_has_what_a_dump_has(small: Path) -> None:
    text = bz2.decompress(next((small / "wikipedia").glob("*.xml.bz2")).read_bytes()).decode()
    wanted = (
        "<siteinfo>",
        "<redirect title=",
        "<ns>1</ns>",
        "<ns>10</ns>",
        "{{",
        "{|",
        "&lt;ref",
        "[[Category:",
        "== ",
    )
    assert [part for part in wanted if part not in text] == []


def test_the_sample_is_recognized_by_its_benchmarks(tmp_path: Path) -> None:
    sizes = make_sample(tmp_path, SampleSettings(**SMALL))
    assert is_sample(tmp_path, {"files": sizes})
    (tmp_path / "wikipedia" / "more.txt").write_text("a text of one's own")
    (tmp_path / "tasks" / "mine.yaml").write_text("head: classes")
    assert is_sample(tmp_path, {"files": sizes}), "other text and custom tasks"
    with (tmp_path / "glue" / "SST-2" / "dev.tsv").open("a") as file:
        file.write("good\t1\n")
    assert not is_sample(tmp_path, {"files": sizes})
    assert not is_sample(tmp_path, {}), "no record: not made by `cloze sample`"
