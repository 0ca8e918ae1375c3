"""What a user may ask of a model, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from model.benchmarks.head_specs import request_of
from model.benchmarks.head_specs.word_tags import split_words
from model.benchmarks.readers.examples import ChoiceExample, SpanExample, TagExample, TextExample
from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("U.N. official Ekeus, in Baghdad.", "U.N. official Ekeus , in Baghdad ."),
        ("J. Smith's dog (old) ran 3.5 km on 1996-08-22!", "J. Smith 's dog ( old ) ran 3.5 km on 1996-08-22 !"),
        ("  blanks \t and\nlines ", "blanks and lines"),
        ('... e.g. "this" -- that\'s', '. . . e.g. " this " - - that \'s'),
        ("Zoë lives in 東京。", "Zoë lives in 東京 。"),
        ("", ""),
    ],
)
def test_words_lie_where_they_are_said_to(text: str, words: str) -> None:
    places = split_words(text)
    assert [text[begin:end] for begin, end in places] == words.split()
    assert places == sorted(places) and all(begin < end for begin, end in places)


@pytest.mark.parametrize(
    ("benchmark", "given", "example"),
    [
        ("sst2", "fine", TextExample("", "fine", None, None)),
        ("sst2", {"sentence": "fine", "index": "7"}, TextExample("7", "fine", None, None)),
        ("sst2", {"text": "fine", "id": 3, "else": 1}, TextExample("3", "fine", None, None)),
        ("rte", ["a", "b"], TextExample("", "a", "b", None)),
        ("rte", ("a", "b"), TextExample("", "a", "b", None)),
        ("mrpc", {"#1 String": "a", "#2 String": "b"}, TextExample("", "a", "b", None)),
        ("mrpc", {"text": "a", "text_pair": "b"}, TextExample("", "a", "b", None)),
        ("squad1", {"question": "q", "context": "c", "id": "x"}, SpanExample("x", "q", "c", ())),
        ("squad2", ("q", "c"), SpanExample("", "q", "c", ())),
        ("swag", {"context": "c", "endings": list("abde")}, ChoiceExample("", "c", tuple("abde"), None)),
        (
            "swag",
            {"sent1": "c", "sent2": "s", "ending0": "a", "ending1": "b", "ending2": "d", "ending3": "e"},
            ChoiceExample("", "c", ("s a", "s b", "s d", "s e"), None),
        ),
        ("ner", "Anna ran.", TagExample("", ("Anna", "ran", "."), ())),
        ("ner", {"words": ["Anna", "ran."]}, TagExample("", ("Anna", "ran."), ())),
        ("ner", ["Anna"], TagExample("", ("Anna",), ())),
        ("ner", {"text": "Anna"}, TagExample("", ("Anna",), ())),
    ],
)
def test_every_way_of_asking(benchmark: str, given: Any, example: Any) -> None:
    assert request_of(BENCHMARKS[benchmark], given).example == example


def test_a_name_is_given_back_as_it_is() -> None:
    assert request_of(BENCHMARKS["sst2"], {"text": "a", "id": 3}).id == 3
    assert request_of(BENCHMARKS["qqp"], {"question1": "a", "question2": "b", "id": "9"}).id == "9"
    assert request_of(BENCHMARKS["sst2"], "a").id is None


@pytest.mark.parametrize(
    ("benchmark", "given", "message"),
    [
        ("sst2", 5, "expected a text, found int"),
        ("sst2", {"txt": "a"}, "no field 'text'; found 'txt'; the fields of this benchmark are sentence"),
        ("sst2", {"text": None}, r"'text': expected text, found nothing \(null\)"),
        ("sst2", {"text": "\ud800"}, "surrogate"),
        ("rte", "a", r"expected 2 texts \(sentence1, sentence2\), found one text"),
        ("rte", {"text": "a"}, "no field 'text_pair'"),
        ("rte", ["a", "b", "c"], "found 3 values"),
        ("rte", ["a", 4], "'text_pair': expected text, found int"),
        ("squad1", {"question": "q"}, "no field 'context'"),
        ("swag", {"context": "c", "endings": ["a"]}, "'endings': expected 4, found 1"),
        ("swag", {"context": "c", "endings": "abcd"}, "'endings': expected a list of texts, found one text"),
        ("swag", "c", "expected a context and its endings"),
        ("ner", 3, "expected a text or its words, found int"),
        ("ner", {"words": [1]}, "'words': expected text"),
    ],
)
def test_what_cannot_be_asked(benchmark: str, given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        request_of(BENCHMARKS[benchmark], given)
