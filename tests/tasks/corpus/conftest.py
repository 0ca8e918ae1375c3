"""What the corpus tests share: dumps made of pages, and the real one where it is at hand."""

from __future__ import annotations

import bz2
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

from tasks.params.corpus import CorpusSettings

SHARED = Path(__file__).parents[4] / "shared" / "data"

MakeDump = Callable[..., bytes]


def page_xml(
    title: str, text: str, *, number: int = 1, namespace: int = 0, redirect: str = "", model: str = "wikitext"
) -> str:
    """One <page> as the exporter writes it."""
    pointer = f'    <redirect title="{redirect}" />\n' if redirect else ""
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>\n{pointer}"
        f"    <revision>\n      <id>9</id>\n      <comment>a &lt;page&gt; of [[text]]</comment>\n"
        f"      <model>{model}</model>\n      <format>text/x-wiki</format>\n"
        f'      <text xml:space="preserve">{escape(text)}</text>\n    </revision>\n  </page>\n'
    )


HEADER = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="de">\n  <siteinfo>\n'
    '    <namespaces>\n      <namespace key="0" case="first-letter" />\n'
    '      <namespace key="6" case="first-letter">Datei</namespace>\n'
    '      <namespace key="14" case="first-letter">Kategorie</namespace>\n    </namespaces>\n  </siteinfo>\n'
)


def dump_xml(*pages: str) -> bytes:
    """A whole dump of these pages."""
    return (HEADER + "".join(pages) + "</mediawiki>\n").encode()


@pytest.fixture(scope="session")
def real_wikipedia(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the real dump and articles."""
    archive = SHARED / "wikipedia.tar.xz"
    if not archive.is_file():
        pytest.skip("../shared/data/wikipedia.tar.xz is not here")
    folder = tmp_path_factory.mktemp("real")
    shutil.unpack_archive(archive, folder)
    return folder / "wikipedia"


def words(number: int, count: int = 30) -> str:
    return " ".join(f"word{zlib.crc32(f'{number} {place}'.encode()) % 997}" for place in range(count))


def article(number: int) -> str:
    box = f"{{{{Box|x={number}}}}}\n"
    return f"{box}'''Sentence''' one {words(number)}.<ref>no</ref> Sentence two has {words(number + 1)}."


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    (data / "wikipedia").mkdir(parents=True)
    (data / "books").mkdir()
    pages = [page_xml(f"Title {number}", article(number), number=number) for number in range(300)]
    pages += [page_xml("R", "x", redirect="T"), page_xml("Short", "Only this."), page_xml("Same", article(7).upper())]
    (data / "wikipedia" / "dump.xml.bz2").write_bytes(bz2.compress(dump_xml(*pages)))
    (data / "books" / "b.txt").write_text(
        f"CHAPTER I\n\nA first {words(5001)}. And {words(5002)}.\n\n"
        f"CHAPTER II\n\nThe second {words(5003)}. It {words(5004)}.\n"
    )
    (data / "rows.jsonl").write_text(
        "".join(
            json.dumps({"id": n, "title": "", "text": f"Row {words(n + 900)}. More {words(n)}."}) + "\n"
            for n in range(50)
        )
    )
    return data


def corpus_settings(**changes: Any) -> CorpusSettings:
    sources = [
        {"name": "wiki", "kind": "mediawiki", "path": "wikipedia"},
        {"name": "rows", "kind": "jsonl", "path": "rows.jsonl"},
        {"name": "books", "kind": "books", "path": "books/*.txt"},
    ]
    return CorpusSettings.parse({"sources": sources, "shard_bytes": 20_000, **changes}, "params.yaml")
