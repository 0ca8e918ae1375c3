"""Generate approximate part-of-speech tags, parses and chunks for the benchmark files that contain them."""

from __future__ import annotations

import re

from tasks.sample.word_bank import WORDS

TAGS = {word: tag for tag, words in WORDS["parts_of_speech"].items() for word in words}


def words_of(sentence: str) -> list[str]:
    """Split a sentence into words and punctuation marks."""
    return re.findall(r"\w+|[^\w\s]", sentence)


def tag(word: str, *, opens: bool = False) -> str:
    """Return the Penn Treebank tag of a word; set `opens` for the first word, whose capital is not informative."""
    lower = word.lower()
    if lower in TAGS:
        return TAGS[lower]
    if not word[0].isalnum():
        return word if word in ".,:" else ("." if word == "?" else "''")
    if word[0].isdigit():
        return "CD"
    if word[0].isupper() and not opens:
        return "NNP"
    if word.endswith("ed"):
        return "VBD"
    return "NNS" if word.endswith("s") else "NN"


def chunk(part_of_speech: str) -> str:
    """Return the CoNLL chunk tag for a part of speech."""
    if part_of_speech.startswith(("NN", "DT", "PRP", "CD")):
        return "I-NP"
    if part_of_speech.startswith("VB"):
        return "I-VP"
    return "I-PP" if part_of_speech in ("IN", "TO") else "O"


def binary_parse(sentence: str) -> str:
    """Return a right-branching binary parse: ( The ( robin ( sings . ) ) )."""
    *words, last = words_of(sentence)
    return "".join(f"( {word} " for word in words) + last + " )" * len(words)


def parse(sentence: str) -> str:
    """Return a flat parse with parts of speech: (ROOT (S (DT The) (NN robin) ...))."""
    words = words_of(sentence)
    leaves = " ".join(f"({tag(word, opens=place == 0)} {word})" for place, word in enumerate(words))
    return f"(ROOT (S {leaves}))"
