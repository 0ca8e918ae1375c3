"""Plain text: what a document is, packed files, and what is passed over."""

from __future__ import annotations

import bz2
import gzip
from collections import Counter
from pathlib import Path

import pytest

from model.errors import UserError
from tasks.corpus import texts
from tasks.corpus.documents import Draft, Dropped
from tasks.corpus.settings import TextSource

TEXT = "First line.\nSecond  line.\n\n\nThird – line.\r\n\nFourth line."


def read(path: Path, **settings: object) -> tuple[list[Draft], Counter[str]]:
    source = TextSource.parse({"name": "t", "kind": "text", "path": "t", **settings}, "test")
    chunks = list(texts.read_chunks(source, path, path.name))
    drafts = []
    drops = sum((chunk.drops for chunk in chunks), Counter())
    for chunk in chunks:
        for item in chunk.items:
            try:
                drafts.append(texts.parse(source, item, chunk))
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
        with pytest.raises(UserError, match=r"t\.txt\.\w+: damaged or cut off after document"):
            read(path, documents=documents)


@pytest.mark.parametrize("documents", ["blocks", "lines", "files"])
def test_what_is_too_large_is_passed_over(tmp_path: Path, documents: str) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"One.\n\n" + b"x" * 5000 + b"\n\nTwo.\n\n" + b"\xff\n")
    found, drops = read(path, documents=documents, max_document_bytes=1000)
    assert [draft.paragraphs for draft in found] == ([] if documents == "files" else [["One."], ["Two."]])
    assert drops == Counter({texts.TOO_LARGE: 1, **({} if documents == "files" else {"not UTF-8": 1})})
