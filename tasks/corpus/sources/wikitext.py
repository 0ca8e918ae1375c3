"""Extract paragraphs of prose from wikitext: no lists, tables, headings, templates, references, files or math.

Block structure is removed in passes whose time is proportional to the page size, even for broken markup. Unclosed
markup ends with its paragraph, except for a table, which ends with its section.

A dump contains template calls, not their expansions. Most are notes, boxes and citations, which are not prose. A few
carry text: "a {{convert|5|km|mi}} walk". assets/templates.yaml lists them; unknown templates are removed.

Nine in ten paragraphs contain only plain links, paired emphasis and simple tags, which regular expressions handle.
mwparserfromhell, which is much slower, handles the others with the same result.
"""

from __future__ import annotations

import bisect
import html
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tasks.corpus.sources.prose import tidy_lines
from tasks.project.yaml_files import read_yaml

FILE_NAMESPACES = frozenset({"file", "image", "media", "category"})
# Elements whose content is not prose. (<includeonly> is expanded in other pages; its own page does not show it.)
_CUT_ELEMENTS = (
    "ref|references|math|chem|ce|gallery|timeline|source|syntaxhighlight|pre|score|imagemap|hiero|graph|mapframe|maplink|"
    "templatedata|includeonly|table|ul|ol|dl|inputbox|categorytree|indicator|templatestyles|style|script"
)
_CUT = frozenset([*_CUT_ELEMENTS.split("|"), "li", "dt", "dd", "hr"])

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_NOWIKI = re.compile(r"<nowiki\s*>((?:(?!<nowiki).)*?)</nowiki\s*>|<nowiki\s*/>", re.S | re.I)
_NOWIKI_TAG = re.compile(r"</?nowiki\b[^<>]*>", re.I)
_EMPTY_ELEMENT = re.compile(rf"<(?:{_CUT_ELEMENTS})\b[^<>]*/>", re.I)
_ELEMENT = re.compile(
    rf"<({_CUT_ELEMENTS})\b[^<>]*>[^<]*(?:<(?!(?:{_CUT_ELEMENTS})\b|/\1\s*>)[^<]*)*</\1\s*>", re.I
)  # innermost: contains no other element to remove
_UNCLOSED_ELEMENT = re.compile(rf"<(?:{_CUT_ELEMENTS})\b[^\n]*|</(?:{_CUT_ELEMENTS})\s*>", re.I)
_PARAMETER = re.compile(r"\{\{\{[^{}|]*(?:\|([^{}]*))?\}\}\}")
# Do not use possessive groups; Python before 3.11.3 captures them incorrectly.
_TEMPLATE = re.compile(r"\{\{([^{}]*(?:(?:\{(?!\{)|\}(?!\}))[^{}]*)*)\}\}")
_UNCLOSED_TEMPLATE = re.compile(r"\{\{[^\n]*(?:\n[^\n]+)*")
_VARIANT = re.compile(r"-\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}-")
_PREFORMATTED = "\x01"
_INDENTED = re.compile(r"\n (?=[^\s{|<\[])")  # boxes and files may be indented
_TABLE_START = re.compile(r"[ \t:*#;]*\{\|")
_TABLE_END = re.compile(r"[ \t]*\|\}(?!\})")
_HEADING = re.compile(r"\s*(={1,6})[^=].*\1\s*$|\s*={2,}.*={2,}\s*$")
_LINK_EDGE = re.compile(r"\[\[|\]\]")
_MEDIA = "jpe?g|png|svg|gif|tiff?|webp|xcf|bmp|djvu|pdf|og[agv]|webm|mp3|mp4|wav|flac|midi?|mpe?g|stl"
_MEDIA_LINK = rf"[^\[\]|\n:<>]{{1,40}}:[^\[\]|\n:<>]{{1,240}}\.(?:{_MEDIA})\s*(?=\||\]\])"  # namespaces have aliases
_SWITCH = re.compile(r"__[A-Z]{3,}__")
_BREAKS = re.compile(r"<(?:br\b[^<>]*>\s*(?:<br\b[^<>]*>\s*)+|/?(?:p|div|blockquote|poem|center)\b[^<>]*>)", re.I)
_LINE_MARKUP = ("*", "#", ":", ";", "|", "!", "{|", "----", _PREFORMATTED)

MARKUP = re.compile(  # starts with a character class, so the search skips letters quickly
    r"[{}\[\]|<=_:!*#](?:(?<=\{)[{|]|(?<=\})\}|(?<=\[)\[|(?<=\])\]|(?<=\|)[}|]|(?<=<)/?ref\b|(?<==)=|(?<=_)_[A-Z]+__|"
    r"(?<=\bFile:)\S|(?<=\bImage:)\S|(?<=\bCategory:)\S|(?<=^[|!*#]))"
)
"""Sentences that contain this markup are dropped and counted."""

_MOST_MARKS = 2_000  # per paragraph: prose has fewer, and the parser's time is quadratic in them
_LANGUAGE_LINK = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?:|simple:")
_EXPONENT = re.compile(r"[-−+]?\d+(?:[.,]\d+)?$")
_LEFT_OVER = re.compile(r"</?[a-zA-Z][^<>]{0,300}>|'{2,5}|\[\[|\]\]|\{\{+|\}\}+|\{\||\|\}")

_LINK = re.compile(r"\[\[([^\[\]{}|<>\n]+)(?:\|([^\[\]{}]*))?\]\]")
_SITE = re.compile(r"\[(?:https?:)?//[^\s\[\]<>{}|\"']+(?: +([^\[\]<>{}]*))?\]")
_BREAK = re.compile(r"<br\s*/?\s*>", re.I)
_RAISED = re.compile(r"<sup>([^<>\[\]'&]*)</sup>", re.I)
_STYLE = re.compile(
    r"<(sub|small|big|i|b|u|s|em|strong|span|code|tt|font|abbr|cite|q|var)(?: [^<>]*)?>([^<>]*)</\1\s*>", re.I
)
_APOSTROPHES = re.compile(r"''+")
_ELISION = re.compile(r"'''(?<=\w''')'*\w")  # an elided article before emphasis (l'''eau'')

_LONGEST_CAPTION = 5_000  # characters
_MOST_PASSES = 60  # templates on real pages nest about a dozen deep


def paragraphs_of(wikitext: str, file_namespaces: Collection[str] = FILE_NAMESPACES) -> list[str]:
    """Return the paragraphs of a page in order, each as one tidy line.

    Links into `file_namespaces` (lower-case names of the file and category namespaces) produce no text.
    """
    text = "\n" + wikitext.replace("\r\n", "\n").replace("\t", " ").replace(_PREFORMATTED, "")
    # Do this first, because a removed template may leave a space at the start of its line.
    text = _INDENTED.sub(f"\n{_PREFORMATTED}", text)
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
    return tidy_lines(shown(paragraph, file_namespaces) for paragraph in _join_lines(lines))


def _guarded(match: re.Match[str]) -> str:
    """Escape the markup inside <nowiki> as character references, so later passes treat it as text."""
    return re.sub(r"[\[\]{}|<>'=*#:;!&_]", lambda mark: f"&#{ord(mark[0])};", match[1] or "")


def _until_stable(
    text: str, pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str], opening: str
) -> str:
    """Replace matches, innermost first, until none are left or the maximum nesting depth is reached."""
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
    text = _until_stable(text, _TEMPLATE, lambda match: _rendered(match[1].replace(_PREFORMATTED, " ")), "{{")
    return _UNCLOSED_TEMPLATE.sub("", text).replace("}}", "")


def _variant(match: re.Match[str]) -> str:
    """Return the first of several language variants, as used in Chinese and Serbian."""
    body = match[1].rpartition("|")[2]
    first = body.split(";")[0]
    return first.partition(":")[2].strip() if ":" in first else body


def _cut_files(text: str, file_namespaces: Collection[str]) -> str:
    names = "|".join(re.escape(name) for name in sorted(file_namespaces, key=len, reverse=True))
    start = re.compile(rf"\[\[\s*(?:(?:{names})\s*:|{_MEDIA_LINK})", re.I)
    kept, place = [], 0
    while match := start.search(text, place):
        kept.append(text[place : match.start()])
        place = _end_of_link(text, match.end())
        if text[place : place + 1] == "\n" and match.start() > 0 and text[match.start() - 1] == "\n":
            place += 1  # a link alone on its line does not end the paragraph around it
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
        if end is None:  # never closed: remove everything up to the next heading
            following = bisect.bisect(headings, place)
            place = headings[following] if following < len(headings) else len(lines)
        else:
            place = end + 1
            kept.append(_TABLE_END.sub("", lines[end], count=1))
    return kept


def _table_ends(lines: list[str]) -> tuple[dict[int, int | None], list[int]]:
    """Return the last line of the table that starts on each line (None if never closed), and all heading lines."""
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
    """Form paragraphs as MediaWiki does: join consecutive lines, unless a line belongs to a list, table or heading.

    An indented line after prose is a quotation and is kept; after a heading or in a list, it is dropped.
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


_Rule = Callable[[list[str], dict[str, str]], str]  # (positional arguments, named arguments) -> text
_TEMPLATES = read_yaml(Path(__file__).parents[1] / "assets" / "templates.yaml")
_UNITS: dict[str, str] = _TEMPLATES["units"]
_RANGES: dict[str, str] = _TEMPLATES["ranges"]
_NUMBER = re.compile(r"[-−+]?[\d.,/+ \u00a0]*\d[\d.,/+]*$")


def _convert(positional: list[str], named: dict[str, str]) -> str:
    """Render (value, unit), (value, range word, value, unit), or feet and inches (value, ft, value, in)."""
    if not positional or not _NUMBER.match(positional[0]):
        return ""
    text, rest = positional[0], positional[1:]
    while len(rest) >= 2 and rest[0] in _RANGES and _NUMBER.match(rest[1]):
        text += _RANGES[rest[0]] + rest[1]
        rest = rest[2:]
    if not rest:
        return text
    text = f"{text} {_UNITS.get(rest[0], rest[0])}"
    if len(rest) >= 3 and _NUMBER.match(rest[1]) and rest[0] in {"ft", "lb", "st", "mi", "yd"}:
        text = f"{text} {rest[1]} {_UNITS.get(rest[2], rest[2])}"
    return text


def _as_of(positional: list[str], named: dict[str, str]) -> str:
    if "alt" in named:
        return named["alt"]
    date = [part for part in positional[:3] if part]
    if len(date) > 1 and date[1].isdecimal() and 1 <= int(date[1]) <= 12:
        date[1] = _TEMPLATES["months"][int(date[1]) - 1]
    word = "since" if named.get("since", "n").startswith("y") else "as of"
    return f"{word if named.get('lc', 'n').startswith('y') else word.capitalize()} {' '.join(reversed(date))}"


def _fraction(positional: list[str], _named: dict[str, str]) -> str:
    match positional:
        case [whole, over, under, *_]:
            return f"{whole} {over}/{under}"
        case [over, under]:
            return f"{over}/{under}"
        case [under]:
            return f"1/{under}"
    return ""


def _quantity(positional: list[str], _named: dict[str, str]) -> str:
    """Render a number and its unit, which may be given as prefix and unit."""
    if not positional or not _NUMBER.match(positional[0]):
        return ""
    return " ".join(part for part in (positional[0], "".join(positional[1:3])) if part)


_RULES: dict[str, _Rule] = {
    "first": lambda positional, _named: "".join(positional[:1]),
    "second": lambda positional, _named: "".join(positional[:2][-1:]),
    "last": lambda positional, _named: "".join(positional[-1:]),
    "joined": lambda positional, _named: "".join(positional),
    "reign": lambda positional, _named: "r. " + "–".join(positional[:2]),
    "circa": lambda positional, _named: " – ".join(f"c. {year}" for year in positional[:2] if year) or "c.",
    "value": lambda positional, named: " ".join(filter(None, [*positional[:1], named.get("u") or named.get("ul")])),
    "block": lambda positional, named: "\n\n".join(
        ["", named.get("text") or named.get("quote") or "".join(positional[:1]), ""]
    ),
    "as_of": _as_of,
    "convert": _convert,
    "fraction": _fraction,
    "quantity": _quantity,
}
_RULE_OF = {name: rule for key, rule in _RULES.items() for group in _TEMPLATES[key] for name in group.split("|")}
_CONSTANTS = {name: text for text, group in _TEMPLATES["constant"].items() for name in group.split("|")}
_PREFIXES = {name: text for text, group in _TEMPLATES["prefixed"].items() for name in group.split("|")}


def _rendered(call: str) -> str:
    parts = _split(call)
    if parts[0].lstrip().lower().startswith("formatnum:"):
        parts[:1] = parts[0].split(":", 1)
    name = parts[0].strip().replace("_", " ").lower()
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    # {{lang-de|Wort}} yields the word; only the template itself knows the name of the language.
    rule = _RULE_OF.get(name) or (_RULES["first"] if name.startswith("lang-") or name in _PREFIXES else None)
    if rule is None:
        return ""
    positional: list[str] = []
    named: dict[str, str] = {}
    for part in parts[1:]:
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not re.fullmatch(r"[\w -]+", key):
            positional.append(part.strip())
        elif key.isdecimal():
            place = int(key) - 1
            if 0 <= place < 20:
                positional += [""] * (place + 1 - len(positional))
                positional[place] = value.strip()
        else:
            named[key.lower()] = value.strip()
    return (_PREFIXES.get(name, "") if positional else "") + rule(positional, named)


def _split(call: str) -> list[str]:
    """Split a call at the vertical bars that are not inside a link."""
    if "[[" not in call:
        return call.split("|")
    parts, depth = [""], 0
    for piece in re.split(r"(\[\[|\]\]|\|)", call):
        depth += (piece == "[[") - (piece == "]]")
        if piece == "|" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def shown(paragraph: str, file_namespaces: Collection[str] = FILE_NAMESPACES) -> str:
    """Return the visible text of a one-line paragraph without templates, tables, files and removed elements.

    Links into `file_namespaces` (lower-case names) produce no text.
    """
    if paragraph.count("<") + paragraph.count("[") > _MOST_MARKS:
        return ""
    text = _simply_shown(paragraph, file_namespaces)
    if text is None:
        import mwparserfromhell  # of the extra "pipeline"

        text = _shown(mwparserfromhell.parse(paragraph, skip_style_tags=False), file_namespaces)
    for _ in range(2):  # text from <nowiki> is escaped twice
        text = html.unescape(text) if "&" in text else text
    if "<" in text or "''" in text or "[[" in text or "]]" in text or "{" in text or "}" in text:
        text = _LEFT_OVER.sub("", text)
    return text


def _simply_shown(text: str, file_namespaces: Collection[str]) -> str | None:
    """Return the text of a paragraph if regular expressions can handle it, otherwise None."""
    if "<" in text:
        text = _RAISED.sub(_raised, _BREAK.sub(" ", text))
        for _ in range(3):
            text, count = _STYLE.subn(r"\2", text)
            if not count:
                break
    if "''" in text:
        runs = [len(run) for run in _APOSTROPHES.findall(text)]
        pairs = runs.count(2) + runs.count(5), runs.count(3) + runs.count(5)
        if sum(pairs) - runs.count(5) != len(runs) or pairs[0] % 2 or pairs[1] % 2 or _ELISION.search(text):
            return None
        text = _APOSTROPHES.sub("", text)
    if "[[" in text:
        parts = _LINK.split(text)  # [before, title, text, between, title, text, ...]
        for place in range(1, len(parts), 3):
            title, own = parts[place], parts[place + 1]
            if ":" in title:
                parts[place] = _link(title, own, file_namespaces)
            else:
                parts[place] = title.strip() if own is None else own
            parts[place + 1] = ""
        text = "".join(parts)
    if "//" in text:
        text = _SITE.sub(lambda site: site[1] or "", text)
    if "<" in text or "[[" in text or "]]" in text or "{" in text or "}" in text or "://" in text or "__" in text:
        return None
    return text


def _link(title: str, text: str | None, file_namespaces: Collection[str]) -> str:
    """Return the text or title of a link; links to files, categories and other languages have no text."""
    if ":" in title:
        title = title.strip()
        prefix = title.partition(":")[0].strip().lower()
        if prefix in file_namespaces or (text is None and _LANGUAGE_LINK.match(title)):
            return ""
    if text is None:
        return title.strip().removeprefix(":")
    return text


def _raised(match: re.Match[str]) -> str:
    return f"^{match[1]}" if _EXPONENT.match(match[1]) else match[1]  # 10<sup>5</sup> must not become 105


def _shown(node: Any, file_namespaces: Collection[str]) -> str:
    """Return the visible text of a node; templates, comments, arguments and headings have none."""
    from mwparserfromhell import nodes
    from mwparserfromhell.wikicode import Wikicode

    match node:
        case Wikicode():
            return "".join(_shown(child, file_namespaces) for child in node.nodes)
        case nodes.Text():
            return str(node.value)
        case nodes.Wikilink():
            if node.text is None:
                return _link(_shown(node.title, file_namespaces), None, file_namespaces)
            return _link(str(node.title), _shown(node.text, file_namespaces), file_namespaces)
        case nodes.ExternalLink():
            return _shown(node.title, file_namespaces)
        case nodes.HTMLEntity():
            return str(node.normalize())
        case nodes.Tag():
            name = str(node.tag).strip().lower()
            if name == "br" or name in _CUT:
                return " " if name == "br" else ""
            content = _shown(node.contents, file_namespaces)
            return f"^{content}" if name == "sup" and _EXPONENT.match(content) else content
    return ""
