"""Repair lines of prose, and compute features that distinguish prose from fragments."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

# Invisible characters without meaning in prose: soft hyphens, direction marks, byte-order marks, zero-width spaces.
# Zero-width joiners are kept, because Persian and Indic scripts need them.
_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffd]")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_MAY_NEED_REPAIR = re.compile(  # starts with a character class, so the search skips letters quickly
    r"[(\[)\],;:.“\"](?:"
    r"(?<=[(\[])(?:[\s,;:.–—/)\]]|(?:or|and|from) )|(?<=[\s,;:–—/]\))|(?<=\s[,;.)])|(?<=[,;:])\s*[,;.]|"
    r"(?<=“)\s*”|(?<=\")\s*\")"
)
# Remains of removed templates, references and formulas.
_REPAIRS = [  # none begins with a repetition or an alternative, which would be slow
    (re.compile(r"\(\s*(?:[,;:/–—]\s*|(?:or|and|from)\s*(?=[),;:]))+"), "("),
    (re.compile(r"[\s,;:/–—][\s,;:/–—]*\)"), ")"),
    (re.compile(r"[(\[“\"](?:(?<=\()\s*\)|(?<=\[)\s*\]|(?<=“)\s*”|(?<=(?<!\S)\")\s*\"(?=[\s,.;)]|$))"), " "),
    (re.compile(r"\(\s+"), "("),
    (re.compile(r"\s\s*(?=[,;)](?:\s|$)|\.(?:\s|$))"), ""),
    (re.compile(r"([,;:])(?:\s*[,;])+(?=\s|$)"), r"\1"),
    (re.compile(r"[,;:][,;:]*(?=\.(?:\s|$))"), ""),
]
_CLOSERS = " \"'”’»“›」』】）)]}*†‡"
_SENTENCE_MARKS = frozenset(".!?…:;。！？｡．：；؟۔।॥։።፧᙮។៕܀‼⁇⁈⁉")
_LETTER = re.compile(r"[^\W\d_]")


def tidy(text: str) -> str:
    """Return the text as one line with single spaces, without invisible characters and remains of removed markup."""
    if not text.isprintable():  # whitespace other than a space is not printable
        text = " ".join(_CONTROL.sub("", text).split())
    elif "  " in text:
        text = " ".join(text.split())
    if not text.isascii() and _INVISIBLE.search(text):
        text = " ".join(_INVISIBLE.sub("", text).split())
    text = text.strip()
    if _MAY_NEED_REPAIR.search(text):
        for pattern, replacement in _REPAIRS:
            text = pattern.sub(replacement, text)
        text = " ".join(text.split())
    return text


def tidy_lines(lines: Iterable[str]) -> list[str]:
    """Tidy each line, and drop empty results."""
    return [line for line in map(tidy, lines) if line]


def ends_sentence(text: str) -> bool:
    """Check whether a tidy text ends with a sentence mark of any script, ignoring closing quotes and brackets."""
    return text.rstrip(_CLOSERS)[-1:] in _SENTENCE_MARKS


def num_words(text: str) -> int:
    """Count words separated by spaces. In scripts without spaces (Chinese, Thai), four characters count as a word."""
    by_blanks = text.count(" ") + 1
    return by_blanks if text.isascii() or len(text) < 16 * by_blanks else len(text) // 4


def num_symbol_words(words: list[str]) -> int:
    others = [word for word in itertools.filterfalse(str.isalpha, words) if not word[:1].isalpha()]
    return sum(_LETTER.search(word) is None for word in others)


def has_letter(text: str) -> bool:
    return text[:1].isalpha() or _LETTER.search(text) is not None
