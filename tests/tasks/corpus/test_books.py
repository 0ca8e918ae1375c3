"""Books as publishers of free books write them: wrapped or not, with headers, chapters and hyphens."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest

from model.errors import UserError
from tasks.corpus import books
from tasks.corpus.documents import Draft, Piece
from tasks.corpus.settings import BooksSource

SOURCE = BooksSource(name="books", kind="books", path="books")
PARAGRAPHS = [
    "It was the best of times, it was the worst of times, and nobody who lived then knew which of the two it was.",
    '"You must go," she said. "There is no other way, however long we may look for one."',
    "He went, and the road was long, and the evening came down over the hills before he had seen a single house.",
    "At the inn they gave him bread and a bed, and asked him nothing at all until the morning of the next day.",
]


def parse(content: bytes, source: BooksSource = SOURCE, path: Path | None = None) -> list[Draft]:
    assert path is not None
    path.write_bytes(content)
    drafts = []
    for book in books.read(source, Piece.whole(path, f"data/books/{path.name}"), Counter()):
        drafts += books.parse(source, book)
    return drafts


@pytest.mark.parametrize("layout", ["a line each", "wrapped, blank between", "wrapped only"])
def test_paragraphs_of_every_layout(tmp_path: Path, layout: str) -> None:
    if layout == "a line each":
        text = "\n".join(PARAGRAPHS)
    else:
        wrapped = [textwrap.fill(paragraph, 60) for paragraph in PARAGRAPHS]
        text = ("\n\n" if "blank" in layout else "\n").join(wrapped)
    for line_end in ("\n", "\r\n"):
        drafts = parse(("\ufeff" + text.replace("\n", line_end)).encode(), path=tmp_path / "A_Book.txt")
        assert [draft.paragraphs for draft in drafts] == [PARAGRAPHS]
        assert (drafts[0].id, drafts[0].title) == ("data/books/A_Book.txt#0", "A_Book")


def test_header_and_licence_are_cut(tmp_path: Path) -> None:
    text = (
        "The Project Gutenberg eBook of X\n\nTitle: X\n\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\n\n"
        f"{PARAGRAPHS[0]}\n\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\n\nYou may copy it.\n"
    )
    assert [draft.paragraphs for draft in parse(text.encode(), path=tmp_path / "x.txt")] == [PARAGRAPHS[:1]]


def test_chapters_are_documents(tmp_path: Path) -> None:
    text = (
        f"THE ROAD\n\nCHAPTER I\n\n{PARAGRAPHS[0]}\nChapter 7, he thought, was the longest of all.\n\n"
        f"CHAPTER THE SECOND. A Walk\n\n{PARAGRAPHS[1]}\n\nIII\n\n{PARAGRAPHS[2]}\n\nPart two of the tale was lost.\n"
    )
    drafts = parse(text.encode(), path=tmp_path / "x.txt")
    assert [draft.title for draft in drafts] == ["x", "x: CHAPTER I", "x: CHAPTER THE SECOND. A Walk", "x: III"]
    assert "Chapter 7, he thought" in drafts[1].paragraphs[0]
    whole = parse(text.encode(), SOURCE.model_copy(update={"documents": "books"}), path=tmp_path / "x.txt")
    assert len(whole) == 1
    assert PARAGRAPHS[2] in whole[0].paragraphs


def test_broken_words_and_old_encodings(tmp_path: Path) -> None:
    text = "He was a well-\nknown man--they\nsaid--and _very_ caf\xe9-\nminded [Illustration: a man].\n\nSo it was.\n"
    drafts = parse(text.encode("cp1252"), path=tmp_path / "x.txt")
    assert drafts[0].paragraphs[0] == "He was a well-known man – they said – and very café-minded."


def test_a_file_that_is_no_book_is_refused(tmp_path: Path) -> None:
    small = SOURCE.model_copy(update={"max_book_bytes": 1000})
    with pytest.raises(UserError, match=r"data/books/x\.txt: 1,001 bytes are more than max_book_bytes"):
        parse(b"x" * 1001, small, path=tmp_path / "x.txt")
