"""Repairs of what cut markup leaves behind, and sentences out of paragraphs."""

from __future__ import annotations

import pytest

from tasks.corpus.cleaning import sentences_of
from tasks.corpus.sources.prose import ends_sentence, has_letter, num_symbol_words, num_words, tidy
from tasks.params.corpus import Prose


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("  a \t b\u00a0c \n", "a b c"),
        ("Leonov (; born 1947) was.", "Leonov (born 1947) was."),
        ("It (or ; ) is ( ) so .", "It is so."),
        ("zero\u200bwidth soft\u00adhyphen \ufeffmark", "zerowidth softhyphen mark"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("one, , two,. Three", "one, two. Three"),
        ("The .NET and the .45 calibre", "The .NET and the .45 calibre"),
        ('He said "no" , then "" left.', 'He said "no", then left.'),
        ("f(x), a; b: c (d) [e]", "f(x), a; b: c (d) [e]"),
        ("wait ... no", "wait ... no"),
    ],
)
def test_tidy(text: str, repaired: str) -> None:
    assert tidy(text) == repaired
    assert tidy(repaired) == repaired


def test_facts_about_text() -> None:
    assert all(ends_sentence(text) for text in ["So.", 'He said: "No!"', "そうです。", "क्या है।", "(Yes?)", "هل؟"])
    assert not any(ends_sentence(text) for text in ["Hull City", "", "a,", '"'])
    assert num_words("one two three") == 3
    assert num_words("我们在这里看到一个没有空格的中文句子它很长很长很长很长") == 6
    assert has_letter("3 м") and not has_letter("3 – 4.")
    assert num_symbol_words(["a", "1", "–", "b2", "(c)", "3.5", "%"]) == 4


def test_sentences_end_with_their_paragraph() -> None:
    text = ["Dr. A. Smith left. He came back", "and went.", "1. 2.", "* * *"]
    assert sentences_of(text, "en") == ["Dr. A. Smith left.", "He came back", "and went."]


def test_scraps_are_no_prose() -> None:
    lines = [
        "Professional career.",
        "Hull City",
        "He played for the club in 1999. He left it for another one. See also",
        "The paragraph that ran into a list has these members:",
        "A caption with many words but without any mark at its end",
    ]
    prose = Prose()
    assert sentences_of(lines, "en", prose) == [
        "He played for the club in 1999.",
        "He left it for another one.",
        "The paragraph that ran into a list has these members:",
    ]
    thai = ["นี่คือประโยคภาษาไทยที่ไม่มีเครื่องหมายวรรคตอนใดๆเลย"]
    assert sentences_of(thai, "th", prose) == []
    assert sentences_of(thai, "th", Prose(require_sentence_end=False)) == thai


def test_unknown_language_is_cut_by_general_rules() -> None:
    assert sentences_of(["Aa bb. Cc dd."], "xx-unknown") == ["Aa bb.", "Cc dd."]


def test_what_goes_on_joins_the_sentence_before_it() -> None:
    assert sentences_of(["Can it be so?: once he had asked, he left. It was late."], "en") == [
        "Can it be so?: once he had asked, he left.",
        "It was late.",
    ]
