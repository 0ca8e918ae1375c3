"""Gates, near duplicates, contamination and boilerplate through the whole stage: what is planted is counted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from model.common import files
from model.common.errors import UserError
from tasks.corpus.build_corpus import build_corpus
from tasks.corpus.data_card import one_line
from tasks.corpus.partitions import list_partitions
from tasks.corpus.shards import read_documents, shard_paths
from tests.tasks.corpus.conftest import corpus_settings, dump_xml, page_xml, words

QUESTION = "Which of the seven bridges over the quiet river did the old ferryman build first of all"
LICENSE = "This page is offered under terms that nobody has ever read."


def settings(**changes: Any) -> Any:
    return corpus_settings(**{"unit_bytes": 2_000, **changes})


def rows_of(folder: Path) -> list[tuple[str, str, str, list[str]]]:
    return list(read_documents(shard_paths(folder)))


@pytest.fixture
def planted(data: Path) -> Path:
    """A JSONL of documents that each have one fault, beside the common data, and two rows of RTE that one holds."""

    def row(identifier: str, text: str) -> str:
        return json.dumps({"id": identifier, "title": f"The {identifier}", "text": text}) + "\n"

    long = [f"Line {words(n, 12)} and {words(n + 3, 12)}." for n in range(2000, 2012)]
    near = [*long[:11], f"Other {words(3000, 24)}."]
    russian = "Это предложение по-русски и потому не английское, как все видят. Ещё одно, другое предложение. "
    rows = [
        row("first", " ".join(long)),
        row("near", " ".join(near)),
        row("again", f"Alone {words(2100)}. " + f"Again {words(2101, 10)}. " * 4),
        row("russian", russian + "И третье предложение о том же, чтобы слов хватило вполне и с запасом."),
        row("question", f"Once {words(2200)}. He asked: {QUESTION.lower()}! Then {words(2201)}."),
        *(row(f"license {n}", f"Text {words(2300 + n)}. {LICENSE} Further {words(2400 + n)}.") for n in range(5)),
    ]
    (data / "planted.jsonl").write_text("".join(rows))
    (data / "glue" / "RTE").mkdir(parents=True)
    (data / "glue" / "RTE" / "dev.tsv").write_text(
        f"index\tsentence1\tsentence2\tlabel\n0\tNothing of {words(9000)}\tIt stands nowhere at all here\tentailment\n"
        f"1\t{QUESTION}?\tA ferry is a boat for crossing rivers\tnot_entailment\n"
    )
    return data


PLANTED = [{"name": "planted", "kind": "jsonl", "path": "planted.jsonl", "prose_only": False}]


def test_what_is_planted_is_counted(planted: Path, tmp_path: Path) -> None:
    summary = build_corpus(settings(sources=PLANTED), planted, tmp_path / "out")
    assert summary["drops"] == {"near duplicate": 1, "repeats itself": 1, "wrong script": 1}
    assert [row[1] for row in rows_of(tmp_path / "out")] == ["first", "question", *(f"license {n}" for n in range(5))]
    assert summary["contamination"] == {"rte/dev": 1}
    assert "glue/RTE/test.tsv" in summary["missing"] and "glue/RTE/dev.tsv" not in summary["missing"]
    index = files.read_json(tmp_path / "out" / "index.json")
    assert index["contamination"]["parts"]["rte/dev"] == {
        "items": 2, "items_found": 1, "short_found": 0, "passages": 0, "passages_found": 0, "documents": 1,
        "examples": ["rte/dev/1"],
    }  # fmt: skip
    [near] = index["examples"]["near duplicate"]
    assert near["id"] == "near" and re.fullmatch(r"0\.\d\d like The first", near["note"])
    assert index["examples"]["wrong script"][0]["title"] == "The russian"
    assert index["examples"]["repeats itself"][0]["text"].startswith("Alone word")


def test_each_can_be_switched_off_or_made_to_drop(planted: Path, tmp_path: Path) -> None:
    gates = {"min_script_share": None, "max_repeated_sentences": None, "max_repeated_words": None}
    changes: dict[str, Any] = {"gates": gates, "near_duplicates": None, "contamination": "off", "sources": PLANTED}
    summary = build_corpus(settings(**changes), planted, tmp_path / "off")
    assert summary["documents"] == 10 and summary["drops"] == {}
    assert summary["contamination"] == {} and summary["missing"] == []
    summary = build_corpus(settings(sources=PLANTED, contamination="drop"), planted, tmp_path / "drop")
    assert summary["drops"]["contaminated"] == 1 and summary["contamination"] == {}
    assert "question" not in [row[1] for row in rows_of(tmp_path / "drop")]


def test_boilerplate_is_cut(planted: Path, tmp_path: Path) -> None:
    sources = [{**PLANTED[0], "weight": 2}]
    off = build_corpus(settings(sources=sources), planted, tmp_path / "off")
    summary = build_corpus(
        settings(sources=sources, gates={"max_documents_with_sentence": 4}, min_sentences=3), planted, tmp_path / "out"
    )
    assert summary["drops"]["boilerplate sentence"] == 5
    assert summary["drops"]["too few sentences"] == 5  # what is left of each is too short now
    keeping = settings(sources=sources, gates={"max_documents_with_sentence": 4})
    summary = build_corpus(keeping, planted, tmp_path / "keep", None, 2)
    assert summary["drops"]["boilerplate sentence"] == 5
    assert summary["documents"] == off["documents"] == 14
    sentences = [sentence for row in rows_of(tmp_path / "keep") for sentence in row[3]]
    assert LICENSE not in sentences and len(sentences) == summary["sentences"] == off["sentences"] - 10
    assert summary["words"] == sum(len(sentence.split(" ")) for sentence in sentences)
    card = files.read_json(tmp_path / "off" / "report.json")
    assert {"documents": 5, "text": LICENSE} in card["shared_sentences"]


def test_same_bytes_with_any_number_of_workers(planted: Path, tmp_path: Path) -> None:
    sources = [source.model_dump() for source in corpus_settings().sources] + PLANTED
    sources[0]["max_documents"] = 150
    changed = settings(sources=sources, gates={"max_documents_with_sentence": 4}, contamination="drop")
    digests = set()
    for workers in (1, 2):
        build_corpus(changed, planted, tmp_path / str(workers), None, workers)
        digests.add(files.digest_of_folder(tmp_path / str(workers)))
    assert len(digests) == 1


def test_what_only_concerns_choosing_cleans_nothing_again(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = settings(sources=PLANTED, gates={"max_documents_with_sentence": 4})
    build_corpus(first, planted, tmp_path / "one", partitions_dir=tmp_path / "units")
    monkeypatch.setattr("tasks.corpus.build_corpus.clean_partition", None)
    near = {"threshold": 0.95}
    changes = {"gates": {"max_documents_with_sentence": 9}, "near_duplicates": near, "contamination": "drop"}
    second = settings(sources=PLANTED, **changes)
    monkeypatch.setattr("tasks.corpus.build_corpus.match_partition", None)  # report and drop need the same findings
    summary = build_corpus(second, planted, tmp_path / "two", partitions_dir=tmp_path / "units")
    assert summary["drops"] == {"contaminated": 1, "repeats itself": 1, "wrong script": 1}
    keys = [
        {partition.key for partition in list_partitions(settings(**one), planted)}
        for one in ({}, {"near_duplicates": None}, {"gates": {"min_script_share": 0.6}})
    ]
    assert not keys[0] & keys[1] and not keys[0] & keys[2]


def test_other_benchmark_files_clean_nothing_again(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected = settings(sources=PLANTED)
    build_corpus(selected, planted, tmp_path / "one", partitions_dir=tmp_path / "units")
    monkeypatch.setattr("tasks.corpus.build_corpus.clean_partition", None)
    dev = planted / "glue" / "RTE" / "dev.tsv"
    dev.write_text(dev.read_text() + f"2\t{LICENSE}\tA ferry is a boat for crossing rivers\tentailment\n")
    summary = build_corpus(selected, planted, tmp_path / "two", partitions_dir=tmp_path / "units")
    assert summary["contamination"] == {"rte/dev": 2}
    assert len(list((tmp_path / "units" / "units").glob("*.table.npz"))) == 1


def test_a_malformed_benchmark_is_left_out_of_a_report(planted: Path, tmp_path: Path) -> None:
    (planted / "glue" / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\n")
    summary = build_corpus(settings(sources=PLANTED), planted, tmp_path / "out")
    assert summary["documents"] == 7 and "rte (malformed)" in summary["missing"]
    with pytest.raises(UserError, match=r"dev\.tsv"):
        build_corpus(settings(sources=PLANTED, contamination="drop"), planted, tmp_path / "drop")


def test_the_card(planted: Path, tmp_path: Path) -> None:
    (planted / "wikipedia" / "hostile.xml").write_bytes(
        dump_xml(
            page_xml("<script>alert(1)</script>", "Too short, & <nowiki><b>hostile</b></nowiki> it is.", number=900)
        )
    )
    sources = [source.model_dump() for source in corpus_settings().sources] + PLANTED
    sources[1] |= {"license": "CC0", "origin": "https://example.org/rows"}
    for name in ("one", "two"):
        summary = build_corpus(settings(sources=sources), planted, tmp_path / name)
    for name in ("report.json", "report.html"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    card = files.read_json(tmp_path / "one" / "report.json")
    assert {name: card[name] for name in ("documents", "sentences", "words")} == {
        name: summary[name]
        for name in ("documents", "sentences", "words")  # type: ignore[literal-required]
    }
    assert sum(one["count"] for one in card["words_per_document"]) == summary["documents"]
    assert sum(one["count"] for one in card["words_per_sentence"]) == summary["sentences"]
    assert {reason: drop["count"] for reason, drop in card["drops"].items()} == summary["drops"]
    line = one_line(summary)
    assert line.startswith(f"{summary['documents']:,} documents, {summary['words']:,} words; dropped: ")
    assert {f"{reason} ({count})" for reason, count in summary["drops"].items()} > set(
        line.removesuffix(", ...").partition("dropped: ")[2].split(", ")
    )
    assert line.count("(") == 4 and line.endswith(", ...")
    assert one_line({"documents": 1234, "words": 56789, "drops": {}}) == "1,234 documents, 56,789 words"
    assert card["sources"][1]["license"] == "CC0"
    page = (tmp_path / "one" / "report.html").read_text()
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page
    assert not re.search(r"(?:src|href)=[\"'](?!#)", page)
    assert "default-src 'none'" in page
    for shown in ("near duplicate", "The russian", "https://example.org/rows", "glue/RTE/test.tsv", "wrong script"):
        assert shown in page
