"""Books as publishers of free books write them: wrapped or not, with headers, chapters and hyphens."""

from __future__ import annotations

import io
import tarfile
import textwrap
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.corpus.sources import books
from tasks.corpus.sources.file_chunks import Draft, FileChunk
from tasks.params.corpus import BooksSource

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
    for book in books.read(source, FileChunk.whole(path, f"data/books/{path.name}"), Counter()):
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


def test_header_and_license_are_cut(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match=r"data/books/x\.txt: 1,001 bytes exceed max_book_bytes"):
        parse(b"x" * 1001, small, path=tmp_path / "x.txt")


SMALL_PRINT = (
    "**The Project Gutenberg Etext of X, by Y**\n#3 in our series\n\n***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN "
    "ETEXTS**START***\nWhy is this statement here? You know: lawyers.\n\n{}THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*"
    "Ver.04.29.93*END*\n\n"
)
START = "*** START OF THE PROJECT GUTENBERG EBOOK X ***\n\n"
END = "\n\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\n\nYou may copy it, give it away or use it under the license.\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "Title: X\n\n***START OF THE PROJECT GUTENBERG EBOOK X***\n\n\n",
            "\n\n***END OF THE PROJECT GUTENBERG EBOOK X***\nNo.",
        ),
        ("*** START OF THIS PROJECT GUTENBERG EBOOK THE ADVENTURES OF SHERLOCK\nHOLMES ***\n\n", END),
        ("*** START OF THE PROJECT GUTENBERG EBOOK, X\n\n", "\nEnd of the Project Gutenberg EBook of X, by Y\n" + END),
        (
            START + "Produced by A B, C D and the Online\nDistributed Proofreading Team at http://www.pgdp.net\n\n\n",
            END,
        ),
        (START + "E-text prepared by A B\n\n\nTranscribed from the 1894 edition by C D, email x@y\n\n", END),
        (
            START + "This etext was prepared by A B, from the 1910 edition.\n\n",
            "\n\nThe End of Project Gutenberg Etext X\n",
        ),
        (SMALL_PRINT.format("*END*"), "\n\nEnd of Project Gutenberg's X, by Y\n\n"),
        (SMALL_PRINT.format("*END "), "\n\nEnd of this Project Gutenberg Etext of X\n"),
        (SMALL_PRINT.format("*END*") + "Some notes on the series.\n\n" + START, END),  # header and marker
        (START, END + SMALL_PRINT.format("*END*")),  # 2003: the small print stands at the end
        (START, "\n\n*** START: FULL LICENSE ***\n\nTHE FULL PROJECT GUTENBERG LICENSE\n"),
        ("", END),
        (
            "Produced by A B and the Online\nDistributed Proofreading Team\n\n\n",
            "\n\nEnd of Project Gutenberg's X\n\n*** \n",
        ),
        ("\n\nProduced by A B and the Online\nDistributed Proofreading Team\n\n\n", ""),  # marks cut off before
        ("ENDTHE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTSVer.04.29.93END\n\nThis Etext prepared by A B\n\n", END),
        (START, "\n\nFin du Project Gutenberg EBook de X\n"),
    ],
)
def test_headers_of_every_age(tmp_path: Path, before: str, after: str) -> None:
    for line_end in ("\n", "\r\n"):
        text = f"{before}{PARAGRAPHS[0]}\n\n{PARAGRAPHS[1]}{after}".replace("\n", line_end)
        assert [draft.paragraphs for draft in parse(text.encode(), path=tmp_path / "x.txt")] == [PARAGRAPHS[:2]]


def test_books_that_were_joined_into_a_file_stay(tmp_path: Path) -> None:
    text = "".join(f"The Project Gutenberg eBook\n\n{START}{paragraph}{END}" for paragraph in PARAGRAPHS[:3])
    assert [draft.paragraphs for draft in parse(text.encode(), path=tmp_path / "x.txt")] == [PARAGRAPHS[:3]]
    whole = "\n\n".join([*PARAGRAPHS] * 150)
    second = f"{START}{whole}\n\n{START}{PARAGRAPHS[0]}{END}"  # a long text between two headers is no header
    assert len(parse(second.encode(), path=tmp_path / "x.txt")[0].paragraphs) == 601


def pack(path: Path, files: dict[str, bytes]) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return
    mode = {"tar": "w", "gz": "w:gz", "bz2": "w:bz2", "xz": "w:xz"}[path.suffix[1:]]
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize("name", ["b.zip", "b.tar", "b.tar.gz", "b.tar.bz2", "b.tar.xz"])
def test_archives_are_read_in_place(tmp_path: Path, name: str) -> None:
    book = "\n\n".join(PARAGRAPHS).encode()
    files = {"a/One.txt": book, "cover.png": b"\x89", "../../Two.TXT": book, "z/bomb.txt": b"\0" * 5_000_000}
    pack(tmp_path / name, files)
    small = SOURCE.model_copy(update={"max_book_bytes": 100_000})
    drops: Counter[str] = Counter()
    chunk = FileChunk.whole(tmp_path / name, f"data/books/{name}")
    found = [books.parse(small, item)[0] for item in books.read(small, chunk, drops)]
    assert sorted(draft.id for draft in found) == [
        f"data/books/{name}/{member}#0" for member in ("../../Two.TXT", "a/One.txt")
    ]
    assert {draft.title for draft in found} == {"One", "Two"}
    assert drops == {books.TOO_LARGE: 1}
    assert [path.name for path in tmp_path.iterdir()] == [name]
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=rf"data/books/{name}: the archive is damaged or truncated"):
        list(books.read(SOURCE, FileChunk.whole(tmp_path / name, f"data/books/{name}"), Counter()))


def test_a_book_that_begins_like_a_credit_keeps_its_first_paragraph(tmp_path: Path) -> None:
    text = f"Produced by a poor land, they were hard men.\n\n{PARAGRAPHS[0]}\n"
    assert len(parse(text.encode(), path=tmp_path / "x.txt")[0].paragraphs) == 2
