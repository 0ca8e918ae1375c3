"""Wikitext to prose: what goes, what stays, and that broken markup neither leaks nor takes for ever."""

from __future__ import annotations

import time

import pytest

from tasks.corpus.sources.wikitext import MARKUP, paragraphs_of
from tests.processor_time import check_processor_time


def one(wikitext: str) -> str:
    return "\n".join(paragraphs_of(wikitext))


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''Ada''' ''wrote'' it.", "Ada wrote it."),
        ("See [[Rome]] and [[Paris|the city]]s, [[:Category:X|that]].", "See Rome and the citys, that."),
        ("A [http://x.org site] and [http://y.org] it.", "A site and it."),
        ("A&nbsp;b &amp; c &ndash; d&#39;e.", "A b & c – d'e."),
        ("It<ref>Book, p. 3</ref> is<ref name=a /> so.<ref name='b'>{{cite|x=[[y]]}}</ref>", "It is so."),
        ("A<!-- hidden\n\n[[x]] --> b.", "A b."),
        ("H<sub>2</sub>O and 10<sup>5</sup> on the 19<sup>th</sup>.", "H2O and 10^5 on the 19th."),
        ("The number <math>x^{2}</math> is even.", "The number is even."),
        ("An <nowiki>[[odd]]</nowiki> thing.", "An odd thing."),
        ("-{zh-hans:计算机; zh-hant:電腦}-", "计算机"),
        ("One line\ngoes on.\n\nNext.", "One line goes on.\nNext."),
        ("__NOTOC__\nText.", "Text."),
        ("A<br />b.<br><br>C.", "A b.\nC."),
        ("<blockquote>Said so.</blockquote> Then.", "Said so.\nThen."),
        ("A [[de:Wort]] b.", "A b."),
        ("(born {{IPAc-en|x}}; 1900) and ({{cn}}) and (or {{x}}, Foo)", "(born; 1900) and and (Foo)"),
    ],
)
def test_inline_markup(wikitext: str, text: str) -> None:
    assert one(wikitext) == text


@pytest.mark.parametrize(
    "block",
    [
        "{{Infobox\n| name = x\n| box = {{a|{{b|c}}}}\n| t = {{{1|}}}\n}}",
        '{| class="x"\n! Head\n|-\n| a || b\n{|\n| inner\n|}\n|}',
        ':{| class="x"\n| cell with [[File:A.jpg|thumb]]\n|}',
        "== Heading ==",
        "== Heading ==\n:''For another thing, see [[there]], where it is told.''\n",
        "; term\n: what it means is told here at length.\n: And more of it.",
        "* an entry\n: that goes on here at some length.",
        "=== Deep '''heading''' ===\t",
        "* a list\n** deeper\n# numbered\n; term : meaning\n: indented",
        "[[File:A b.jpg|thumb|200px|A ''caption'' with [[a link]] and [[File:B.png|20px]] more.]]",
        "[[Datei:Bild.jpg|mini|Text mit [[Verweis]].]]",
        "<gallery>\nFile:X.jpg|Words here.\n</gallery>",
        "<math>\na = b\n</math>",
        '<syntaxhighlight lang="c">\nint x = {{0}};\n</syntaxhighlight>',
        "<table><tr><td>A <b>cell</b> <table><tr><td>x</td></tr></table> here.</td></tr></table>",
        "<ul>\n<li>An item of a list.</li>\n</ul>",
        "<timeline>\nbar: x\n</timeline>",
        " preformatted code = 1;\n more of it",
        "[[Category:Things|Key]]\n[[Kategorie:Dinge]]\n[[fr:Chose]]",
        "[[Immagine:Una torre.JPG|220px|right|thumb|La torre ''vecchia'' e la [[valle]].]]",
        "----",
        "{{#if: x | y | {{z}} }}",
        "<references>\n<ref name=a>Text of it.</ref>\n</references>",
    ],
)
def test_blocks_are_cut_and_their_neighbors_stay(block: str) -> None:
    text = f"Before it stands this.\n\n{block}\n\nAfter it stands that."
    names = {"file", "image", "category", "datei", "kategorie"}
    assert paragraphs_of(text, names) == ["Before it stands this.", "After it stands that."]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("{{convert|5|km|mi}}", "5 km"),
        ("{{convert|3|to|4|sqmi|km2}}", "3 to 4 sq mi"),
        ("{{convert|5|ft|6|in|m|abbr=on}}", "5 ft 6 in"),
        ("{{lang|fr|le mot}}", "le mot"),
        ("{{lang-de|Wort}}", "Wort"),
        ("{{transl|ar|ALA|kitab}}", "kitab"),
        ("{{as of|2010|5|lc=y}}", "as of May 2010"),
        ("{{nowrap|1=a = b}}", "a = b"),
        ("{{nowrap|0=a|²=b|c}}", "c"),
        ("{{nowrap|[[a|b]] c}}", "b c"),
        ("{{frac|3|1|2}}", "3 1/2"),
        ("{{circa|1900}}", "c. 1900"),
        ("{{formatnum:3003}}", "3003"),
        ("{{HMS|Beagle|1820}}", "HMS Beagle"),
        ("{{sfn|Smith|1990}}", ""),
        ("{{unheard of|x}}", ""),
        ("{{lang|fr|{{nowrap|{{small|mot}}}}}}", "mot"),
        ("{{仮リンク|山の名|en|Hill}}", "山の名"),
        ("{{не перекладено|Назва|назви|en|Name}}", "назви"),
        ("{{citazione necessaria|la torre}}", "la torre"),
        ("{{M|1|M|Hz}}", "1 MHz"),
        ("{{unité|1 500|km}}", "1 500 km"),
        ("{{citation needed|date=May 2010}}", ""),
    ],
)
def test_templates_that_stand_for_words(call: str, text: str) -> None:
    assert one(f"It is {call} here.") == " ".join(f"It is {text} here.".split())


def test_file_on_its_own_line_does_not_end_the_paragraph() -> None:
    assert one("They included\n[[File:A.jpg|thumb|Words.]]\nLouise and others.") == "They included Louise and others."


def test_an_indented_quotation_belongs_to_the_prose_before_it() -> None:
    text = "She wrote:\n:It was late, and ''nobody'' came.<ref>P. 3</ref>\n::\n\n: Then the light went.\n\nSo it ended."
    assert paragraphs_of(text) == [
        "She wrote:",
        "It was late, and nobody came.",
        "Then the light went.",
        "So it ended.",
    ]


def test_a_link_to_a_file_elsewhere_is_text() -> None:
    assert one("See [[:Image:A.png|the image]] and [[Ratio 3:2|a ratio]] there.") == "See the image and a ratio there."


@pytest.mark.parametrize(
    "broken",
    [
        "{{Infobox | a = {{b}",
        "{| class=x\n| cell",
        "[[File:A.jpg|thumb|never closed",
        "<ref>never closed",
        "[[link never closed",
        "text}} of no template |}",
        "<!-- never closed",
        "'''bold never closed",
        "{{{{{{}}}{{}}",
        "</ref></div><span",
    ],
)
def test_broken_markup_leaks_nothing(broken: str) -> None:
    paragraphs = paragraphs_of(f"Before it stands this.\n\n{broken}\n\n== Next ==\nAfter it stands that.")
    assert paragraphs[0] == "Before it stands this."
    assert not any(MARKUP.search(paragraph) for paragraph in paragraphs)
    if "<!--" not in broken:  # a comment goes to the end of the page, as in MediaWiki
        assert paragraphs[-1] == "After it stands that."


@pytest.mark.parametrize(
    "bomb",
    ["{{" * 50_000, "[[" * 50_000, "{|\n" * 30_000, "<ref>" * 30_000, "{{a|" * 20_000 + "}}" * 20_000, "-{" * 50_000,
     "[[File:" * 20_000, "'" * 100_000, "<!--" * 50_000, "{{{" * 30_000 + "}}}" * 30_000, "<nowiki>" * 20_000,
     "{|\n==a==\n" * 20_000, "[[File:\n" * 20_000, "<table>" * 20_000 + "</table>" * 20_000, "==" * 50_000,
     "<b>" * 20_000, "[http://x " * 20_000],
)  # fmt: skip
def test_hostile_pages_take_linear_time(bomb: str) -> None:
    start = time.process_time()
    paragraphs_of(bomb)
    check_processor_time(time.process_time() - start, 8)
