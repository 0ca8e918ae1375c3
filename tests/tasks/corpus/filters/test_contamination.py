"""Planted rows of benchmarks are found, whatever their case and punctuation; what is said everywhere drops nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.corpus.filters.contamination import (
    BenchmarkItem,
    Contamination,
    ContaminationTable,
    read_benchmark_texts,
)
from tasks.corpus.sources.hashed_words import hash_words
from tasks.params.corpus import ContaminationSettings
from tests.tasks.corpus.conftest import SHARED

SETTINGS = ContaminationSettings()
LONG = "which of the seven lakes that lie north of the old mill is the deepest of them all"
TEN = "who built the bridge over the river near the mill?"
SHORT = "Where are you going?"
PASSAGE_TEXT = "The lake lies in a valley between two ridges and is fed by a stream that never runs dry in summer."
ITEMS = [
    BenchmarkItem("squad1/dev/a", (LONG,)),
    BenchmarkItem("squad1/dev/b", (TEN,)),
    BenchmarkItem("squad1/dev/b/passage", (PASSAGE_TEXT,)),
    BenchmarkItem("mnli/dev_matched/c", (SHORT, "Nothing of this is said in any document at all.")),
]


@pytest.fixture(scope="module")
def table() -> ContaminationTable:
    return ContaminationTable.of(ITEMS, SETTINGS)


def found(table: ContaminationTable, *sentences: str) -> Contamination:
    return table.find(hash_words(sentences))


def test_a_long_text_is_found_by_thirteen_words(table: ContaminationTable) -> None:
    words = LONG.split()
    assert found(table, f"So {' '.join(words[:13])} one?").items == (0,)
    assert found(table, f"So {' '.join(words[-13:])} one?").items == (0,)
    assert found(table, f"So {' '.join(words[:12])} one?") == Contamination()


def test_a_shorter_text_is_found_as_a_whole(table: ContaminationTable) -> None:
    assert found(table, f"He asked {TEN} and went.").items == (1,)
    assert found(table, "who built the bridge over the river near the hill?") == Contamination()


@pytest.mark.parametrize(
    "sentences",
    [
        ("WHO BUILT — THE “BRIDGE”, OVER THE RIVER; NEAR THE MILL",),
        ("He knew who built the", "bridge over", "the river near the mill, and left."),
    ],
)
def test_case_punctuation_and_borders_do_not_count(table: ContaminationTable, sentences: tuple[str, ...]) -> None:
    assert found(table, *sentences).items == (1,)


def test_what_is_said_everywhere_counts_apart_and_drops_nothing(table: ContaminationTable) -> None:
    finding = found(table, "She stopped him.", "“Where are you going?”", "He laughed.")
    assert finding == Contamination(short=(3,))
    assert found(table, "Tell me where are you going to be then.") == Contamination()
    assert not finding.is_reason_to_drop(ContaminationSettings(action="drop"))


def test_passages_are_a_reason_only_when_asked_for(table: ContaminationTable) -> None:
    finding = found(table, PASSAGE_TEXT)
    assert (finding.items, finding.passages) == ((), (2,))
    assert not finding.is_reason_to_drop(ContaminationSettings(action="drop"))
    assert finding.is_reason_to_drop(ContaminationSettings(action="drop", drop_passages=True))
    assert found(table, TEN).is_reason_to_drop(ContaminationSettings(action="drop"))
    assert not found(table, TEN).is_reason_to_drop(ContaminationSettings(action="report"))


def test_the_report_counts_rows_once(table: ContaminationTable) -> None:
    findings = [found(table, TEN, SHORT), found(table, TEN), found(table, PASSAGE_TEXT), found(table, "Nothing.")]
    report = table.report(findings)
    assert report["squad1/dev"] == {
        "items": 2, "items_found": 1, "short_found": 0, "passages": 1, "passages_found": 1, "documents": 3,
        "examples": ["squad1/dev/b"],
    }  # fmt: skip
    assert report["mnli/dev_matched"]["short_found"] == 1 and report["mnli/dev_matched"]["documents"] == 0


def test_a_table_from_disk_is_the_same(table: ContaminationTable, tmp_path: Path) -> None:
    table.save(tmp_path / "table.npz")
    again = ContaminationTable.load(tmp_path / "table.npz")
    assert (again.names, again.digest) == (table.names, table.digest)
    assert found(again, TEN, PASSAGE_TEXT, SHORT) == found(table, TEN, PASSAGE_TEXT, SHORT)


def test_no_items() -> None:
    assert found(ContaminationTable.of([], SETTINGS), "Some text.") == Contamination()


def test_settings_as_one_word() -> None:
    assert ContaminationSettings.parse("drop", "x").action == "drop"
    assert ContaminationSettings.parse(False, "x").action == "off"
    with pytest.raises(UserError, match="squat"):
        ContaminationSettings.parse({"benchmarks": ["squat1"]}, "x")


def test_the_readers_say_what_is_a_passage_and_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "glue/QNLI").mkdir(parents=True)
    (tmp_path / "glue/QNLI/dev.tsv").write_text(
        "index\tquestion\tsentence\tlabel\n0\tWho did n't go -LRB- there -RRB- ?\tHe went.\tentailment\n"
    )
    (tmp_path / "squad").mkdir()
    question = {"question": "Who\nwent?", "answers": [{"text": "He", "answer_start": 0}]}
    paragraphs = [{"context": "He went.", "qas": [question | {"id": "x"}, question | {"id": "y"}]}]
    (tmp_path / "squad/dev-v1.1.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    texts = read_benchmark_texts(["qnli", "squad1", "rte"], tmp_path)
    assert [item.name for item in texts.items] == [
        "qnli/dev/0",
        "qnli/dev/0/passage",
        "squad1/dev/x",
        "squad1/dev/x/passage",
        "squad1/dev/y",
    ]
    assert texts.items[0].texts[0].split() == ["Who", "didn't", "go", "there", "?"]
    assert texts.missing == ["glue/QNLI/test.tsv", "glue/RTE/dev.tsv", "glue/RTE/test.tsv"]


def test_every_planted_dev_question_among_real_text(real_wikipedia: Path, tmp_path: Path) -> None:
    import shutil

    import pyarrow.parquet

    shutil.unpack_archive(SHARED / "squad.tar.xz", tmp_path)
    items = read_benchmark_texts(["squad1"], tmp_path).items
    table = ContaminationTable.of(items, SETTINGS)
    articles = pyarrow.parquet.read_table(real_wikipedia / "articles.parquet", columns=["text"])["text"][:3000]
    rng = random.Random(1)
    missed = 0
    for number, item in enumerate(items):
        if item.name.endswith("/passage"):
            continue
        words = articles[rng.randrange(3000)].as_py().split()[:80]
        question = item.texts[0].upper().replace("?", " ?!").split()
        if len(hash_words(item.texts).words) >= SETTINGS.min_words:  # anywhere, over a sentence's end
            cut = rng.randrange(len(words)), rng.randrange(1, len(question))
            document = words[: cut[0]] + question + words[cut[0] :]
            sentences = [" ".join(document[: cut[0] + cut[1]]), " ".join(document[cut[0] + cut[1] :])]
        else:
            sentences = [" ".join(words[:40]), " ".join(question), " ".join(words[40:])]
        finding = found(table, *sentences)
        missed += number not in finding.items + finding.short
    assert missed == 0
