"""Dumps in every packing give the same pages; damaged ones are named."""

from __future__ import annotations

import bz2
from collections import Counter
from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.corpus.sources import mediawiki
from tasks.corpus.sources.file_chunks import Draft, Dropped, FileChunk
from tasks.params.corpus import MediaWikiSource
from tests.tasks.corpus.conftest import HEADER, dump_xml, page_xml

SOURCE = MediaWikiSource(name="wiki", kind="mediawiki", path="wikipedia")
PAGES = [page_xml(f"Title {n} & more", f"Text of page {n}. " * (n % 7 + 1), number=n) for n in range(1, 60)]


def read(
    path: Path, source: MediaWikiSource = SOURCE, chunks: list[FileChunk] | None = None
) -> tuple[list[Draft | str], dict[str, int]]:
    """(Drafts or reasons of the drops, what the reader refused)."""
    results: list[Draft | str] = []
    drops: Counter[str] = Counter()
    for chunk in chunks or [FileChunk.whole(path, path.name)]:
        for item in mediawiki.read(source, chunk, drops):
            try:
                results.append(mediawiki.parse(source, item))
            except Dropped as reason:
                results.append(str(reason))
    return results, drops


@pytest.mark.parametrize("packing", ["plain", "bz2", "streams by page", "streams anywhere", "empty stream"])
def test_every_packing_gives_the_same_pages(tmp_path: Path, packing: str) -> None:
    xml = dump_xml(*PAGES)
    path = tmp_path / ("dump.xml" if packing == "plain" else "dump.xml.bz2")
    if packing == "plain":
        path.write_bytes(xml)
    elif packing == "bz2":
        path.write_bytes(bz2.compress(xml))
    elif packing == "streams by page":
        path.write_bytes(b"".join(bz2.compress(part.encode()) for part in [HEADER, *PAGES, "</mediawiki>"]))
    elif packing == "streams anywhere":  # as parallel compressors cut
        path.write_bytes(b"".join(bz2.compress(xml[at : at + 777]) for at in range(0, len(xml), 777)))
    else:
        path.write_bytes(bz2.compress(b"") + bz2.compress(xml) + bz2.compress(b""))
    drafts, drops = read(path)
    assert [draft.id for draft in drafts if isinstance(draft, Draft)] == [str(n) for n in range(1, 60)]
    assert isinstance(drafts[2], Draft)
    assert drafts[2].title == "Title 3 & more"
    assert drafts[2].paragraphs == [("Text of page 3. " * 4).strip()]
    assert not drops


def test_pages_that_are_no_articles(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(
        dump_xml(
            page_xml("Here", "#REDIRECT [[There]]", redirect="There"),
            page_xml("Talk:Here", "Words.", namespace=1),
            page_xml("Module", "return 1", model="Scribunto"),
            page_xml("Good", "Words [[Datei:X.jpg|mini|A caption]] stay."),
            page_xml("Empty", ""),
        ).replace(b"Words [[", b"Words \xff\xfe [[")
    )
    drafts, _ = read(path)
    assert drafts[:3] == ["redirect", "other namespace", "not wikitext"]
    assert isinstance(drafts[3], Draft)
    assert drafts[3].paragraphs == ["Words stay."]  # invalid UTF-8 goes, and the German name of files is known
    assert drafts[4] == Draft("1", "Empty", [])


def test_newest_revision_of_a_history(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    old = "<revision><text>Old words.</text></revision><revision>"
    path.write_bytes(dump_xml(page_xml("A", "New words.").replace("<revision>", old)))
    assert [draft.paragraphs for draft in read(path)[0] if isinstance(draft, Draft)] == [["New words."]]


def test_page_too_large_is_counted_and_not_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(bz2.compress(dump_xml(PAGES[0], page_xml("Bomb", "0" * 30_000_000), PAGES[1])))
    assert path.stat().st_size < 10_000
    drafts, drops = read(path)
    assert len(drafts) == 2
    assert drops == {"page too large": 1}


def test_damaged_page_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(
        dump_xml(PAGES[0].replace("</revision>", "</revison>"), PAGES[1].replace("Text", "&lol; Text"), PAGES[2])
    )
    drafts, _ = read(path)
    assert drafts[:2] == ["damaged page", "damaged page"]
    assert isinstance(drafts[2], Draft)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xml.bz2", bz2.compress(dump_xml(*PAGES))[:-60], "truncated"),
        ("b.xml.bz2", bz2.compress(dump_xml(*PAGES)) + bz2.compress(b"x" * 9999)[:20], "truncated"),
        ("c.xml.bz2", b"no bz2 at all", "not a bz2 file"),
        ("d.xml.bz2", bz2.compress(dump_xml(*PAGES)[:5000]), "middle of a page"),
        ("e.xml", dump_xml(*PAGES)[:-200], "middle of a page"),
        ("f.xml", b"<html>nothing</html>", "no <page> element"),
        ("g.xml", b"", "no <page> element"),
        ("h.xml.bz2", b"", "no <page> element"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        read(path)
    assert str(raised.value).startswith(f"{name}: ")
    assert "\n" not in str(raised.value)


def test_corrupt_bz2_is_named(tmp_path: Path) -> None:
    content = bytearray(bz2.compress(dump_xml(*PAGES)))
    content[len(content) // 2] ^= 0xFF
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match="damaged"):
        read(path)
