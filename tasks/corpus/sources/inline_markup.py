"""Convert links, emphasis, tags and entities in a paragraph of wikitext to the text that a reader sees.

A few regular expressions handle plain links, paired emphasis and simple tags, which is all that nine paragraphs in ten
contain; mwparserfromhell, which takes most of the time of reading a dump, handles the others with the same result.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection

import mwparserfromhell
from mwparserfromhell import nodes

FILE_NAMESPACES = frozenset({"file", "image", "media", "category"})
# Elements whose content is no prose of the page. (<includeonly> is what a template gives, not what its page shows.)
CUT_ELEMENTS = (
    "ref|references|math|chem|ce|gallery|timeline|source|syntaxhighlight|pre|score|imagemap|hiero|graph|mapframe|maplink|"
    "templatedata|includeonly|table|ul|ol|dl|inputbox|categorytree|indicator|templatestyles|style|script"
)

_CUT = frozenset([*CUT_ELEMENTS.split("|"), "li", "dt", "dd", "hr"])
_MOST_MARKS = 2_000  # in a paragraph: no prose has more, and the parser's time grows with their square
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
_ELISION = re.compile(r"'''(?<=\w''')'*\w")  # an article's apostrophe before emphasis


def shown(paragraph: str, file_namespaces: Collection[str] = FILE_NAMESPACES) -> str:
    """The text of a paragraph, on its one line.

    Args:
        paragraph: wikitext without templates, tables, files and elements to cut.
        file_namespaces: lower-case names of the namespaces whose links show no text.
    """
    if paragraph.count("<") + paragraph.count("[") > _MOST_MARKS:
        return ""
    text = _simply_shown(paragraph, file_namespaces)
    if text is None:
        code = mwparserfromhell.parse(paragraph, skip_style_tags=False)
        text = "".join(_shown(node, file_namespaces) for node in code.nodes)
    for _ in range(2):  # in <nowiki>, characters are references to begin with
        text = html.unescape(text) if "&" in text else text
    if "<" in text or "''" in text or "[[" in text or "]]" in text or "{" in text or "}" in text:
        text = _LEFT_OVER.sub("", text)
    return text


def _simply_shown(text: str, file_namespaces: Collection[str]) -> str | None:
    """The text of a paragraph that the regular expressions can handle; None for any other."""
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
        parts = _LINK.split(text)  # between, title, text, between, ...
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
    """The text of a link: nothing for files, categories and other languages, else its text or its title."""
    if ":" in title:
        title = title.strip()
        prefix = title.partition(":")[0].strip().lower()
        if prefix in file_namespaces or (text is None and _LANGUAGE_LINK.match(title)):
            return ""
    if text is None:
        return title.strip().removeprefix(":")
    return text


def _raised(match: re.Match[str]) -> str:
    return f"^{match[1]}" if _EXPONENT.match(match[1]) else match[1]  # 10<sup>5</sup> is not 105


def _shown_code(code: mwparserfromhell.wikicode.Wikicode | None, file_namespaces: Collection[str]) -> str:
    return "" if code is None else "".join(_shown(node, file_namespaces) for node in code.nodes)


def _shown(node: nodes.Node, file_namespaces: Collection[str]) -> str:
    """The text that a reader of the page sees for a node."""
    match node:
        case nodes.Text():
            return str(node.value)
        case nodes.Wikilink():
            title = _shown_code(node.title, file_namespaces) if node.text is None else str(node.title)
            return _link(title, None if node.text is None else _shown_code(node.text, file_namespaces), file_namespaces)
        case nodes.ExternalLink():
            return _shown_code(node.title, file_namespaces)
        case nodes.HTMLEntity():
            return str(node.normalize())
        case nodes.Tag():
            return _shown_tag(node, file_namespaces)
        case _:
            return ""  # templates, comments, arguments, headings


def _shown_tag(node: nodes.Tag, file_namespaces: Collection[str]) -> str:
    name = str(node.tag).strip().lower()
    if name in _CUT:
        return ""
    if name == "br":
        return " "
    content = _shown_code(node.contents, file_namespaces)
    if name == "sup" and _EXPONENT.match(content):
        return f"^{content}"
    return content
