"""Plain text: what a document is, packed files, and what is passed over."""

from __future__ import annotations

import bz2
import csv
import gzip
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.corpus.build_corpus import build_corpus
from tasks.corpus.sources import plain_text
from tasks.corpus.sources.file_chunks import Draft, Dropped, FileChunk
from tasks.params.corpus import CorpusSettings, TextSource

TEXT = "First line.\nSecond  line.\n\n\nThird – line.\r\n\nFourth line."


def read(path: Path, **settings: object) -> tuple[list[Draft], Counter[str]]:
    source = TextSource.parse({"name": "t", "kind": "text", "path": "t", **settings}, "test")
    drafts = []
    drops: Counter[str] = Counter()
    for item in plain_text.read(source, FileChunk.whole(path, path.name), drops):
        try:
            drafts.append(plain_text.parse(source, item))
        except Dropped as reason:
            drops[str(reason)] += 1
    return drafts, drops


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("files", [("t.txt", ["First line.", "Second line.", "Third – line.", "Fourth line."])]),
        (
            "blocks",
            [
                ("t.txt#1", ["First line.", "Second line."]),
                ("t.txt#2", ["Third – line."]),
                ("t.txt#3", ["Fourth line."]),
            ],
        ),
        (
            "lines",
            [
                (f"t.txt#{n}", [line])
                for n, line in enumerate(["First line.", "Second line.", "Third – line.", "Fourth line."], 1)
            ],
        ),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_documents(tmp_path: Path, documents: str, expected: list[tuple[str, list[str]]], suffix: str) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
    path = tmp_path / f"t.txt{suffix}"
    path.write_bytes(pack(("\ufeff" + TEXT).encode()))
    found, drops = read(path, documents=documents)
    assert [(draft.id.replace(suffix, "") if suffix else draft.id, draft.paragraphs) for draft in found] == expected
    assert not drops
    if suffix:
        path.write_bytes(path.read_bytes()[:-6])
        with pytest.raises(UserError, match=r"t\.txt\.\w+: damaged or truncated after document"):
            read(path, documents=documents)


def test_groups_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text(TEXT + "\nFifth line.")
    found, _ = read(path, documents="lines", lines_per_document=2)
    assert [draft.paragraphs for draft in found] == [
        ["First line.", "Second line."],
        ["Third – line.", "Fourth line."],
        ["Fifth line."],
    ]
    with pytest.raises(UserError, match="applies to `documents: lines`"):
        read(path, lines_per_document=2)


@pytest.mark.parametrize("documents", ["blocks", "lines", "files"])
def test_what_is_too_large_is_passed_over(tmp_path: Path, documents: str) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"One.\n\n" + b"x" * 5000 + b"\n\nTwo.\n\n" + b"\xff\n")
    found, drops = read(path, documents=documents, max_document_bytes=1000)
    assert [draft.paragraphs for draft in found] == ([] if documents == "files" else [["One."], ["Two."]])
    assert drops == Counter({plain_text.TOO_LARGE: 1, **({} if documents == "files" else {"not UTF-8": 1})})


def test_new_kinds_in_a_corpus(tmp_path: Path) -> None:
    """csv, text and books in an archive, with licenses, come through the whole stage."""
    data = tmp_path / "data"
    data.mkdir()
    texts = [
        f"The {word} dog ran over the hill and far away. Nobody saw where it went that day."
        for word in ("red", "old", "big")
    ]
    with (data / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["body", "key"], [texts[0], "7"]])
    (data / "lines.txt").write_text(f"{texts[1]}\n\xff\n", encoding="latin-1")
    with zipfile.ZipFile(data / "books.zip", "w") as archive:
        archive.writestr("A_Book.txt", texts[2])
    sources = [
        {
            "name": "rows",
            "kind": "csv",
            "path": "rows.csv",
            "text_column": "body",
            "id_column": "key",
            "title_column": None,
        },
        {
            "name": "lines",
            "kind": "text",
            "path": "lines.txt",
            "documents": "lines",
            "license": "CC0-1.0",
            "origin": "here",
        },
        {"name": "books", "kind": "books", "path": "books.zip"},
    ]
    settings = CorpusSettings.parse({"sources": sources, "min_words": 5, "near_duplicates": None}, "test")
    summary = build_corpus(settings, data, tmp_path / "out")
    assert {name: counts["documents"] for name, counts in summary["sources"].items()} == {
        "rows": 1,
        "lines": 1,
        "books": 1,
    }
    assert summary["drops"] == {"not UTF-8": 1}
