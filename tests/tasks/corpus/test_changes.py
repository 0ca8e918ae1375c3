"""What changed is found by partitions, near the change alone, and told as a share of the documents."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from model.common.errors import UserError
from model.common.files import read_json
from tasks.corpus.build_corpus import build_corpus
from tasks.corpus.changes import PartitionChange, changed_share, changed_share_of, since, table
from tests.tasks.corpus.conftest import corpus_settings, words

SOURCES = [
    {"name": "rows", "kind": "jsonl", "path": "rows.jsonl", "max_row_bytes": 1000},
    {"name": "books", "kind": "books", "path": "books"},
]


def settings(**changes: Any) -> Any:
    return corpus_settings(**{"sources": SOURCES, "unit_bytes": 4000, "shard_bytes": 2000, **changes})


def row(number: int) -> str:
    return json.dumps({"id": number, "title": "", "text": f"Row {words(number)}. More {words(number + 5)}."}) + "\n"


@pytest.fixture
def folder(data: Path) -> Path:
    (data / "rows.jsonl").write_text("".join(map(row, range(200))))
    for number in range(60):
        text = f"A {words(number)}. And {words(number + 2)}.\n"
        (data / "books" / f"{number:03d}.txt").write_text(text * (1 + number % 5))
    (data / "books" / "b.txt").unlink()
    return data


def found(data: Path, corpus: Path, **changes: Any) -> list[PartitionChange]:
    return since(settings(**changes), data, corpus, data.parent / "files.json", 2)


def states(changes: list[PartitionChange], source: str) -> dict[str, int]:
    counted = [change.state for change in changes if change.source == source]
    return {state: counted.count(state) for state in sorted(set(counted))}


def test_changes_stay_near_what_changed(folder: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    assert {change.state for change in found(folder, corpus)} == {"new"}
    assert changed_share(found(folder, corpus)) == 1
    build_corpus(settings(), folder, corpus)
    unchanged = found(folder, corpus)
    assert {change.state for change in unchanged} == {"unchanged"}
    assert changed_share(unchanged) == 0
    num_units = states(unchanged, "books")["unchanged"]
    assert num_units > 8

    (folder / "books" / "030b.txt").write_text(f"New {words(77)}. And {words(78)}.\n")
    inserted = found(folder, corpus)
    assert states(inserted, "books")["unchanged"] >= num_units - 3
    assert states(inserted, "rows") == states(unchanged, "rows")
    (folder / "books" / "030b.txt").unlink()

    with (folder / "rows.jsonl").open("a") as file:
        file.write(row(500))
    appended = states(found(folder, corpus), "rows")
    assert appended.get("changed", 0) + appended.get("new", 0) <= 3 < appended["unchanged"]

    (folder / "rows.jsonl").write_text(row(1))
    cut = found(folder, corpus)
    assert states(cut, "rows").keys() == {"changed", "removed"}
    assert 0.3 < changed_share(cut) < 1
    assert changed_share(found(folder, corpus, min_words=7)) == 1
    assert changed_share(found(folder, corpus, drop_duplicates=False)) == changed_share(cut)  # not of cleaning
    assert "changed" in next(iter(table(cut)))


def test_what_a_full_source_leaves_is_not_new(folder: Path, tmp_path: Path) -> None:
    few = [SOURCES[0] | {"max_documents": 30}, SOURCES[1]]
    summary = build_corpus(settings(sources=few), folder, tmp_path / "corpus")
    assert summary["sources"]["rows"]["documents"] == 30
    assert {change.state for change in found(folder, tmp_path / "corpus", sources=few)} == {"unchanged"}
    assert {change.state for change in found(folder, tmp_path / "corpus")} == {"unchanged", "new"}


def test_unchanged_shards_keep_their_bytes(folder: Path, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    build_corpus(settings(), folder, before)
    (folder / "books" / "030b.txt").write_text(f"New {words(77)}. And {words(78)}.\n")
    build_corpus(settings(), folder, after)
    old, new = (read_json(path / "index.json") for path in (before, after))
    digests = [{shard["file"]["sha256"] for shard in index["shards"]} for index in (old, new)]
    assert len(digests[0]) > 6
    assert len(digests[1] - digests[0]) <= 2
    assert 0 < changed_share_of(old, new) < 0.2
    assert changed_share_of(new, new) == 0


def test_digests_are_remembered_and_not_trusted_blindly(folder: Path, tmp_path: Path) -> None:
    build_corpus(settings(), folder, tmp_path / "corpus")
    found(folder, tmp_path / "corpus")
    path = folder / "books" / "010.txt"
    stat = path.stat()
    path.write_text(path.read_text().replace("A", "B", 1))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert changed_share(found(folder, tmp_path / "corpus")) > 0


def test_a_damaged_index_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(UserError, match=r"index\.json: not a readable corpus index"):
        found(folder, tmp_path)
