"""The corpus as a whole: order, gates, counts, determinism, and that nothing half-written is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from model.common import files
from model.common.config_base import Settings
from model.common.errors import UserError
from tasks.corpus.build_corpus import build_corpus
from tasks.corpus.shards import read_documents, shard_paths
from tasks.corpus.sources.wikitext import MARKUP
from tasks.project import parallel
from tests.tasks.corpus.conftest import corpus_settings as settings
from tests.tasks.corpus.conftest import dump_xml, page_xml, words


def rows_of(folder: Path) -> list[tuple[str, str, str, list[str]]]:
    return list(read_documents(shard_paths(folder)))


def test_rows_counts_and_drops(data: Path, tmp_path: Path) -> None:
    reports: list[tuple[int, int, str]] = []
    summary = build_corpus(settings(), data, tmp_path / "out", lambda *row: reports.append(row))
    rows = rows_of(tmp_path / "out")
    assert len(rows) == summary["documents"] == 352
    assert summary["drops"] == {"duplicate": 1, "redirect": 1, "too few words": 1}
    assert {name: counts["documents"] for name, counts in summary["sources"].items()} == {
        "wiki": 300,
        "rows": 50,
        "books": 2,
    }
    assert summary["sentences"] == sum(len(row[3]) for row in rows)
    assert rows[5] == ("wiki", "5", "Title 5", [f"Sentence one {words(5)}.", f"Sentence two has {words(6)}."])
    assert rows[350][:3] == ("books", "data/books/b.txt#1", "b: CHAPTER I")
    assert reports[-1][0] == reports[-1][1] == sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
    assert [done for done, _, _ in reports] == sorted(done for done, _, _ in reports)


def test_little_input_starts_no_processes(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", refuse)
    assert build_corpus(settings(), data, tmp_path / "out", num_workers=2)["documents"] == 352
    with pytest.raises(AssertionError, match="started"):
        build_corpus(settings(unit_bytes=5_000), data, tmp_path / "out", num_workers=2)


def test_same_bytes_with_any_number_of_workers(data: Path, tmp_path: Path) -> None:
    for shuffle in (False, True):
        summaries = [
            build_corpus(
                settings(shuffle_words=shuffle, unit_bytes=5_000), data, tmp_path / f"{shuffle}{workers}", None, workers
            )
            for workers in (1, 2)
        ]
        assert summaries[0] == summaries[1]
        one, two = (tmp_path / f"{shuffle}{workers}" for workers in (1, 2))
        assert len(list(one.iterdir())) > 1  # several shards
        assert files.digest_of_folder(one) == files.digest_of_folder(two)
    assert files.digest_of_folder(tmp_path / "True1") != files.digest_of_folder(tmp_path / "False1")


def test_loads_with_datasets(data: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    build_corpus(settings(), data, tmp_path / "out")
    assert (tmp_path / "out" / "index.json").is_file()  # and it is not taken for data
    loaded = load_dataset("parquet", data_dir=str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(loaded) == 352
    assert loaded.column_names == ["source", "id", "title", "sentences"]
    assert loaded[5]["sentences"][0] == f"Sentence one {words(5)}."


def test_gates_and_weights(data: Path, tmp_path: Path) -> None:
    (data / "numbers.jsonl").write_text(
        json.dumps({"id": 1, "title": "", "text": "Row " + "12.5 " * 60 + ". A b c d e f."})
    )
    sources = [
        {"name": "half", "kind": "jsonl", "path": "rows.jsonl", "weight": 0.5},
        {"name": "some", "kind": "mediawiki", "path": "wikipedia", "max_documents": 10, "weight": 2},
        {"name": "numbers", "kind": "jsonl", "path": "numbers.jsonl"},
    ]
    summary = build_corpus(settings(sources=sources), data, tmp_path / "out")
    counts = {name: counts["documents"] for name, counts in summary["sources"].items()}
    assert 10 < counts["half"] < 40
    assert counts["half"] + summary["drops"]["weight"] == 50
    assert counts["some"] == 20
    assert summary["drops"]["mostly symbols"] == 1
    assert (
        build_corpus(settings(drop_duplicates=False, near_duplicates=None), data, tmp_path / "all")["documents"] == 353
    )
    long = settings(sources=[{"name": "books", "kind": "books", "path": "books", "documents": "books"}], min_words=90)
    assert build_corpus(long, data, tmp_path / "long")["documents"] == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "mediawiki", "path": "wiki"}, r"data/wiki: missing, but the corpus source 'a' reads it"),
        ({"kind": "mediawiki", "path": "books"}, r"data/books: no \.xml\.bz2 or \.xml file for the corpus source 'a'"),
        ({"kind": "parquet", "path": "books/*.parquet"}, r"no \.parquet file"),
        ({"kind": "mediawiki", "path": "cut"}, r"data/cut/dump\.xml\.bz2: ends in the middle of a bz2 stream"),
        ({"kind": "books", "path": "empty"}, r"no document is left; dropped: none"),
    ],
)
def test_faults_leave_nothing_behind(data: Path, tmp_path: Path, source: dict[str, str], message: str) -> None:
    (data / "cut").mkdir()
    (data / "cut" / "dump.xml.bz2").write_bytes((data / "wikipedia" / "dump.xml.bz2").read_bytes()[:-50])
    (data / "empty").mkdir()
    (data / "empty" / "book.txt").write_text("\n")
    sources = [{"name": "a", **source}]
    if source["path"] == "cut":
        sources.insert(0, {"name": "good", "kind": "mediawiki", "path": "wikipedia"})
    for shuffle in (False, True):
        with pytest.raises(UserError, match=message) as raised:
            build_corpus(settings(sources=sources, shuffle_words=shuffle), data, tmp_path / "out")
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": []}, "sources"),
        ({"sources": [{"name": "a", "kind": "mediawik", "path": "x"}]}, "mediawiki"),
        ({"sources": [{"name": "a", "kind": "books", "path": "x", "langauge": "en"}]}, "did you mean 'language'"),
        ({"sources": [{"name": "a", "kind": "books", "path": "x"}] * 2}, "two sources are named 'a'"),
        ({"min_word": 3}, "did you mean 'min_words'"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(**change)


def test_every_field_is_documented() -> None:
    from tasks.params import corpus as module

    for group in vars(module).values():
        if isinstance(group, type) and issubclass(group, Settings) and group is not Settings:
            for name, field in group.model_fields.items():
                assert field.description or name == "kind", f"{group.__name__}.{name}"


BUILD = """
import sys
from pathlib import Path
from tasks.project import parallel
from tasks.corpus.build_corpus import build_corpus
from tasks.params.corpus import CorpusSettings
if __name__ == "__main__":
    sources = [{"name": "w", "kind": "mediawiki", "path": "."}]
    build_corpus(CorpusSettings.parse({"sources": sources}, "p"), Path(sys.argv[1]), Path(sys.argv[2]), None, 2)
"""


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    slow = "[[a|b]] '''c''' " * 60_000  # about a second of cleaning per page
    pages = [page_xml(f"T{number}", slow, number=number) for number in range(60)]
    (data / "dump.xml").write_bytes(dump_xml(*pages))
    script = tmp_path / "run.py"
    script.write_text(BUILD)
    run = subprocess.Popen([sys.executable, str(script), str(data), str(tmp_path / "out")])
    parent = psutil.Process(run.pid)
    deadline = time.monotonic() + 60
    while sum(child.cpu_times().user > 0.5 for child in parent.children()) < 2:
        assert run.poll() is None and time.monotonic() < deadline, "the workers did not start"
        time.sleep(0.1)
    children = parent.children(recursive=True)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    _, alive = psutil.wait_procs(children, timeout=5)
    alive = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]  # dead, if nobody asked for it
    assert not alive, f"{len(alive)} of {len(children)} processes outlive their parent"


@pytest.mark.slow
def test_real_dump_and_articles(real_wikipedia: Path, tmp_path: Path) -> None:
    sources = [
        {"name": "dump", "kind": "mediawiki", "path": "wikipedia"},
        {"name": "articles", "kind": "parquet", "path": "wikipedia", "max_documents": 2000},
    ]
    summary = build_corpus(
        settings(sources=sources, shard_bytes=1 << 27), real_wikipedia.parent, tmp_path / "out", None, 2
    )
    assert summary["drops"]["redirect"] == 100 - summary["drops"].get("other namespace", 0)
    assert summary["sources"]["dump"]["documents"] >= 95
    assert summary["sources"]["dump"]["words"] > 395_000
    for source, _, title, sentences in rows_of(tmp_path / "out"):
        for sentence in sentences:
            assert not MARKUP.search(sentence), (title, sentence)
            assert source != "dump" or not any(mark in sentence for mark in ("'''", "&nbsp;", "<br", "http://", "|-"))
    lincoln = next(row for row in rows_of(tmp_path / "out") if row[2] == "Abraham Lincoln")
    assert lincoln[3][0].startswith("Abraham Lincoln (February 12, 1809 – April 15, 1865) was the 16th President")
