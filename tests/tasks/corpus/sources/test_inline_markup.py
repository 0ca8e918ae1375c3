"""The quick way through a paragraph gives the parser's text, and leaves to it what it cannot tell."""

from __future__ import annotations

import contextlib
import html
from collections import Counter
from pathlib import Path

import mwparserfromhell
import pytest

from tasks.corpus.partitions import list_partitions
from tasks.corpus.sources import mediawiki, wikitext
from tasks.corpus.sources.file_chunks import Dropped
from tasks.corpus.sources.wikitext import FILE_NAMESPACES, shown
from tasks.params.corpus import CorpusSettings, MediaWikiSource

PLAIN = [
    "No markup here, only a [note] and 'quotes'.",
    "'''Ada''' wrote ''to'' '''''them''''' all.",
    "See [[Rome]], [[Paris|the city]]s, [[:Category:X]] and [[:Category:X|that]], [[a|b|c]] and [[ b ]].",
    "A [[de:Wort]] and [[de:Wort|a word]], [[Ratio 3:2]], [[File:A.png|thumb|x]] gone.",
    "A [http://x.org site], [//y.org other one] and [https://z.org].",
    "H<sub>2</sub>O, 10<sup>5</sup>, 19<sup>th</sup>, <small>tiny <b>bold</b></small>.",
    "One<br>two<br />three <span style='x'>four</span>.",
    "Fish&nbsp;&amp; chips &ndash; 5&#39;.",
    "[[a]]'s ''[[b|'c']]'' and [[Earth|''it'']].",
]
FOR_THE_PARSER = [
    "l'''arte''' and l'''arte''.",
    "'''never closed",
    "5 < 6 and <ins>more</ins>",
    "http://x.org bare",
    "x<sup>&minus;1</sup> and <sup>[[a|2]]</sup>",
    "a [[link to [[another]] link]]",
    "''''four''''",
]


def parsed(paragraph: str) -> str:
    text = wikitext._shown(mwparserfromhell.parse(paragraph, skip_style_tags=False), FILE_NAMESPACES)
    return wikitext._LEFT_OVER.sub("", html.unescape(text))


@pytest.mark.parametrize("paragraph", PLAIN)
def test_plain_paragraphs_do_not_need_the_parser(paragraph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parsed(paragraph)
    monkeypatch.setattr(mwparserfromhell, "parse", None)
    assert shown(paragraph) == expected


@pytest.mark.parametrize("paragraph", FOR_THE_PARSER)
def test_others_are_the_parsers(paragraph: str) -> None:
    assert wikitext._simply_shown(paragraph, FILE_NAMESPACES) is None
    assert shown(paragraph) == parsed(paragraph)


def test_real_paragraphs(real_wikipedia: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real dump the two ways agree on every paragraph, and the quick one takes nearly all."""
    seen: list[str] = []
    monkeypatch.setattr(wikitext, "shown", lambda paragraph, _: seen.append(paragraph) or "")
    source = MediaWikiSource(name="w", kind="mediawiki", path="enwiki-pages-articles-sample.xml.bz2")
    for partition in list_partitions(CorpusSettings(sources=(source,)), real_wikipedia):
        for chunk in partition.chunks:
            for page in mediawiki.read(source, chunk, Counter()):
                with contextlib.suppress(Dropped):
                    mediawiki.parse(source, page)
    assert len(seen) > 4000
    quick = [wikitext._simply_shown(paragraph, FILE_NAMESPACES) is not None for paragraph in seen]
    assert sum(quick) > 0.98 * len(quick)
    assert [shown(paragraph) for paragraph in seen] == [parsed(paragraph) for paragraph in seen]
