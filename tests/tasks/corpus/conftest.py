"""What the corpus tests share: dumps made of pages, and the real one where it is at hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

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
