"""Wikitext to paragraphs of prose: no lists, tables, headings, templates, references, galleries, files or maths.

The block structure is cut here in passes that take time proportional to the page, however broken its markup is; what
is inside a paragraph is for tasks.corpus.sources.inline_markup. Unclosed markup ends with its paragraph, except a
table, which ends with its section.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Collection

from tasks.corpus.sources.inline_markup import CUT_ELEMENTS, FILE_NAMESPACES, shown
from tasks.corpus.sources.inline_templates import render
from tasks.corpus.sources.prose import tidy

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_NOWIKI = re.compile(r"<nowiki\s*>((?:(?!<nowiki).)*?)</nowiki\s*>|<nowiki\s*/>", re.S | re.I)
_NOWIKI_TAG = re.compile(r"</?nowiki\b[^<>]*>", re.I)
_EMPTY_ELEMENT = re.compile(rf"<(?:{CUT_ELEMENTS})\b[^<>]*/>", re.I)
_ELEMENT = re.compile(
    rf"<({CUT_ELEMENTS})\b[^<>]*>[^<]*(?:<(?!(?:{CUT_ELEMENTS})\b|/\1\s*>)[^<]*)*</\1\s*>", re.I
)  # innermost: no other element to cut begins inside
_UNCLOSED_ELEMENT = re.compile(rf"<(?:{CUT_ELEMENTS})\b[^\n]*|</(?:{CUT_ELEMENTS})\s*>", re.I)
_PARAMETER = re.compile(r"\{\{\{[^{}|]*(?:\|([^{}]*))?\}\}\}")
# No possessive groups in here: Python below 3.11.3 captures them wrongly.
_TEMPLATE = re.compile(r"\{\{([^{}]*(?:(?:\{(?!\{)|\}(?!\}))[^{}]*)*)\}\}")
_UNCLOSED_TEMPLATE = re.compile(r"\{\{[^\n]*(?:\n[^\n]+)*")
_VARIANT = re.compile(r"-\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}-")
_PREFORMATTED = "\x01"
_INDENTED = re.compile(r"\n (?=[^\s{|<\[])")  # a box or a file may be indented
_TABLE_START = re.compile(r"[ \t:*#;]*\{\|")
_TABLE_END = re.compile(r"[ \t]*\|\}(?!\})")
_HEADING = re.compile(r"\s*(={1,6})[^=].*\1\s*$|\s*={2,}.*={2,}\s*$")
_LINK_EDGE = re.compile(r"\[\[|\]\]")
_MEDIA = "jpe?g|png|svg|gif|tiff?|webp|xcf|bmp|djvu|pdf|og[agv]|webm|mp3|mp4|wav|flac|midi?|mpe?g|stl"
_MEDIA_LINK = rf"[^\[\]|\n:<>]{{1,40}}:[^\[\]|\n:<>]{{1,240}}\.(?:{_MEDIA})\s*(?=\||\]\])"  # namespaces have aliases
_SWITCH = re.compile(r"__[A-Z]{3,}__")
_BREAKS = re.compile(r"<(?:br\b[^<>]*>\s*(?:<br\b[^<>]*>\s*)+|/?(?:p|div|blockquote|poem|center)\b[^<>]*>)", re.I)
_LINE_MARKUP = ("*", "#", ":", ";", "|", "!", "{|", "----", _PREFORMATTED)

MARKUP = re.compile(  # a class of characters comes first: so the search runs over letters at full speed
    r"[{}\[\]|<=_:!*#](?:(?<=\{)[{|]|(?<=\})\}|(?<=\[)\[|(?<=\])\]|(?<=\|)[}|]|(?<=<)/?ref\b|(?<==)=|(?<=_)_[A-Z]+__|"
    r"(?<=\bFile:)\S|(?<=\bImage:)\S|(?<=\bCategory:)\S|(?<=^[|!*#]))"
)
"""Sentences that contain this markup are dropped and counted."""

_LONGEST_CAPTION = 5_000  # characters
_MOST_PASSES = 60  # templates nest a dozen deep on real pages


def paragraphs_of(wikitext: str, file_namespaces: Collection[str] = FILE_NAMESPACES) -> list[str]:
    """The paragraphs of a page, in order, each on one tidy line.

    Args:
        wikitext: the source of the page.
        file_namespaces: lower-case names of the namespaces of files and categories in the page's language, whose
            links show no text.
    """
    text = "\n" + wikitext.replace("\r\n", "\n").replace("\t", " ").replace(_PREFORMATTED, "")
    text = _INDENTED.sub(
        f"\n{_PREFORMATTED}", text
    )  # now: later, a cut template may leave its blank at the line's start
    text = _COMMENT.sub("", text)
    if _NOWIKI_TAG.search(text):
        text = _NOWIKI_TAG.sub("", _NOWIKI.sub(_guarded, text))
    text = _cut_elements(text)
    text = _expand_templates(text)
    if "-{" in text:
        text = _VARIANT.sub(_variant, text)
    if "__" in text:
        text = _SWITCH.sub("", text)
    text = _cut_files(text, file_namespaces)
    text = _BREAKS.sub("\n\n", text)
    lines = text.split("\n")
    if "{|" in text:
        lines = _cut_tables(lines)
    paragraphs = [tidy(shown(paragraph, file_namespaces)) for paragraph in _join_lines(lines)]
    return [paragraph for paragraph in paragraphs if paragraph]


def _guarded(match: re.Match[str]) -> str:
    """The content of <nowiki>, its markup as character references so that no later pass takes it for markup."""
    return re.sub(r"[\[\]{}|<>'=*#:;!&_]", lambda mark: f"&#{ord(mark[0])};", match[1] or "")


def _until_stable(
    text: str, pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str], opening: str
) -> str:
    """Innermost first, until nothing is left to replace (or markup nests deeper than any page's)."""
    for _ in range(_MOST_PASSES):
        if opening not in text:
            break
        text, count = pattern.subn(replacement, text)
        if not count:
            break
    return text


def _cut_elements(text: str) -> str:
    if "<" not in text:
        return text
    text = _EMPTY_ELEMENT.sub("", text)
    text = _until_stable(text, _ELEMENT, lambda match: "\n" if match[1].lower() in _BLOCKS else "", "<")
    return _UNCLOSED_ELEMENT.sub("", text)


_BLOCKS = frozenset({"gallery", "timeline", "source", "syntaxhighlight", "pre", "score", "table", "ul", "ol", "dl"})


def _expand_templates(text: str) -> str:
    if "{{" not in text:
        return text.replace("}}", "")
    text = _until_stable(text, _PARAMETER, lambda match: match[1] or "", "{{{")
    text = _until_stable(text, _TEMPLATE, lambda match: render(match[1].replace(_PREFORMATTED, " ")), "{{")
    return _UNCLOSED_TEMPLATE.sub("", text).replace("}}", "")


def _variant(match: re.Match[str]) -> str:
    """Language variants, as in Chinese and Serbian: the first of them."""
    body = match[1].rpartition("|")[2]
    first = body.split(";")[0]
    return first.partition(":")[2].strip() if ":" in first else body


def _cut_files(text: str, file_namespaces: Collection[str]) -> str:
    """Take away [[File:...]] and [[Category:...]] with all that is nested in them."""
    names = "|".join(re.escape(name) for name in sorted(file_namespaces, key=len, reverse=True))
    start = re.compile(rf"\[\[\s*(?:(?:{names})\s*:|{_MEDIA_LINK})", re.I)
    kept, place = [], 0
    while match := start.search(text, place):
        kept.append(text[place : match.start()])
        place = _end_of_link(text, match.end())
        if text[place : place + 1] == "\n" and match.start() > 0 and text[match.start() - 1] == "\n":
            place += 1  # alone on its line, it does not end the paragraph around it
    return "".join(kept) + text[place:]


def _end_of_link(text: str, place: int) -> int:
    depth, limit = 1, min(len(text), place + _LONGEST_CAPTION)
    paragraph_end = text.find("\n\n", place, limit)
    limit = paragraph_end if paragraph_end >= 0 else limit
    for edge in _LINK_EDGE.finditer(text, place, limit):
        depth += 1 if edge[0] == "[[" else -1
        if depth == 0:
            return edge.end()
    line_end = text.find("\n", place)
    return line_end if line_end >= 0 else len(text)


def _cut_tables(lines: list[str]) -> list[str]:
    ends, headings = _table_ends(lines)
    kept: list[str] = []
    place = 0
    while place < len(lines):
        if place not in ends:
            kept.append(lines[place])
            place += 1
            continue
        kept.append("")
        end = ends[place]
        if end is None:  # never closed: cut to the next heading
            following = bisect.bisect(headings, place)
            place = headings[following] if following < len(headings) else len(lines)
        else:
            place = end + 1
            kept.append(_TABLE_END.sub("", lines[end], count=1))
    return kept


def _table_ends(lines: list[str]) -> tuple[dict[int, int | None], list[int]]:
    """(The last line of the table that starts on a line, or None where it is never closed; the lines of headings)."""
    ends: dict[int, int | None] = {}
    headings: list[int] = []
    open_tables: list[int] = []
    for place, line in enumerate(lines):
        if "{|" in line and _TABLE_START.match(line):
            ends[place] = None
            open_tables.append(place)
        elif open_tables and "|}" in line and _TABLE_END.match(line):
            ends[open_tables.pop()] = place
        elif line.startswith("==") and _HEADING.match(line):
            headings.append(place)
    return ends, headings


def _join_lines(lines: list[str]) -> list[str]:
    """Paragraphs as MediaWiki makes them: lines that follow each other are one, unless one of them is a block's.

    An indented line after prose continues it (a quotation); after a heading or in a list it is a note or an entry.
    """
    paragraphs: list[str] = []
    open_paragraph: list[str] = []
    after_prose = False
    for line in [*lines, ""]:
        stripped = line.strip()
        indented = after_prose and stripped.startswith(":")
        if indented:
            stripped = stripped.lstrip(": ")
        is_prose = bool(stripped) and not stripped.startswith(_LINE_MARKUP) and not _HEADING.match(stripped)
        if open_paragraph and (indented or not is_prose):
            paragraphs.append(" ".join(open_paragraph))
            open_paragraph = []
        if is_prose and indented:
            paragraphs.append(stripped)
        elif is_prose:
            open_paragraph.append(stripped)
        if stripped:
            after_prose = is_prose
    return paragraphs
