"""From what a user asks a fine-tuned model (a text, a pair, a question, JSON) to examples as it was trained on."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.readers.examples import ChoiceExample, SpanExample, TagExample, TextExample
from model.common.errors import UserError

Word = tuple[int, int]  # first character, one past the last

_SYMBOLS = frozenset("$+<=>^`|~")  # what BERT's tokenizer takes for punctuation besides Unicode's


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing that is asked."""

    example: Any
    """As the benchmark's files would give it, without a label."""
    id: Any = None
    """What the user calls it; None where it has no name."""
    text: str = ""
    """For tags, the text that the words lie in."""
    places: tuple[Word, ...] = ()
    """For tags, where each word lies in `text`."""


def columns_of(row: Benchmark) -> tuple[str, ...]:
    """The names of the texts that a benchmark asks for, as its files call them."""
    if row.head == "span":
        return (row.first or "question", row.second or "context")
    if row.head == "tags":
        return (row.first or "text",)
    pair = (row.first, row.second) if row.second else (row.first,)
    return (*pair, *row.endings) if row.head == "choice" else pair


def asked_of(row: Benchmark, given: Any) -> Asked:
    """What `given` asks of a benchmark's model.

    Args:
        given: for one text a string; for two a sequence of both; for tags a string or the sequence of its words; for
            choice a context and the sequence of its endings; or in each case a mapping with the names of the
            benchmark's own columns, or with `text` and `text_pair`, `question` and `context`, `words`, `context` and
            `endings`. `id` is given back with the answer. An `Asked` or an example is taken as it is.

    Raises:
        UserError: a field is missing, or is not text.
    """
    if isinstance(given, Asked):
        return given
    if isinstance(given, (TextExample, ChoiceExample, SpanExample, TagExample)):
        return _of_example(given)
    fields, identity = (given, _identity(row, given)) if isinstance(given, Mapping) else (None, None)
    if row.head == "tags":
        return _tags(row, given, fields, identity)
    if row.head == "choice":
        return _choice(row, given, fields, identity)
    names = {"span": ("question", "context")}.get(row.head, ("text", "text_pair") if row.second else ("text",))
    texts = _texts(row, given, fields, names)
    name = "" if identity is None else str(identity)
    if row.head == "span":
        return Asked(SpanExample(name, texts[0], texts[1], ()), identity)
    return Asked(TextExample(name, texts[0], texts[1] if len(texts) > 1 else None, None), identity)


def words_of(text: str) -> list[Word]:
    """Where the words of a text lie, cut as CoNLL-2003's are: at blanks, punctuation at a word's ends and a
    possessive 's apart; inside words (1996-08-22, U.N.) and after initials (J.) it stays."""
    words: list[Word] = []
    end = 0
    for chunk in text.split():
        begin = text.index(chunk, end)
        end = begin + len(chunk)
        first, last = begin, end
        while first < last and _is_punctuation(text[first]):
            words.append((first, first + 1))
            first += 1
        after: list[Word] = []
        while first < last and _is_punctuation(text[last - 1]) and not _is_abbreviation(text[first:last]):
            last -= 1
            after.append((last, last + 1))
        if last - first > 2 and text[last - 2 : last] in ("'s", "’s"):
            after.append((last - 2, last))
            last -= 2
        if first < last:
            words.append((first, last))
        words += reversed(after)
    return words


def _is_punctuation(character: str) -> bool:
    return character in _SYMBOLS or unicodedata.category(character).startswith("P")


def _is_abbreviation(word: str) -> bool:
    """Whether the full stop at a word's end is part of it: U.N., J."""
    return word.endswith(".") and ("." in word[:-1].strip(".") or (len(word) == 2 and word[0].isupper()))


def _of_example(example: Any) -> Asked:
    if isinstance(example, TagExample):
        text, places = _joined(example.words)
        return Asked(example, example.id, text, places)
    return Asked(example, example.id)


def _identity(row: Benchmark, fields: Mapping[str, Any]) -> Any:
    if "id" in fields:
        return fields["id"]
    return fields.get(row.identity) if row.identity is not None else None


def _texts(row: Benchmark, given: Any, fields: Mapping[str, Any] | None, names: Sequence[str]) -> list[str]:
    """The texts called `names`, or by the benchmark's own columns."""
    if fields is not None:
        own = columns_of(row)
        chosen = own if all(name in fields for name in own) else names
        return [_field(fields, name, own) for name in chosen]
    if len(names) == 1 and isinstance(given, str):
        return [_text(given, names[0])]
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == len(names):
        return [_text(text, name) for text, name in zip(given, names)]
    wanted = "a text" if len(names) == 1 else f"{len(names)} texts ({', '.join(columns_of(row))})"
    raise UserError(f"expected {wanted}, found {_kind(given)}")


def _choice(row: Benchmark, given: Any, fields: Mapping[str, Any] | None, identity: Any) -> Asked:
    own = columns_of(row)
    start = ""
    if fields is not None and all(name in fields for name in own):
        start = _field(fields, row.second, own) if row.second else ""
        columns = [fields[name] for name in row.endings]
        given = (fields[row.first], columns[0] if len(columns) == 1 else columns)
    elif fields is not None:
        given = (_present(fields, "context", own), _present(fields, "endings", own))
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise UserError(f"expected a context and its endings, found {_kind(given)}")
    context = _text(given[0], "context")
    if not isinstance(given[1], Sequence) or isinstance(given[1], str):
        raise UserError(f"'endings': expected a list of texts, found {_kind(given[1])}")
    endings = [f"{start} {_text(ending, 'endings')}".strip() for ending in given[1]]
    if len(endings) != len(row.labels):
        raise UserError(f"'endings': expected {len(row.labels)}, found {len(endings)}")
    return Asked(ChoiceExample("" if identity is None else str(identity), context, tuple(endings), None), identity)


def _tags(row: Benchmark, given: Any, fields: Mapping[str, Any] | None, identity: Any) -> Asked:
    if fields is not None:
        name = next((name for name in ("words", row.first, "text") if name in fields), "text")
        given = _present(fields, name, columns_of(row))
    if isinstance(given, str):
        text = _text(given, "text")
        places = tuple(words_of(text))
        words = tuple(text[begin:end] for begin, end in places)
    elif isinstance(given, Sequence):
        words = tuple(_text(word, "words") for word in given)
        text, places = _joined(words)
    else:
        raise UserError(f"expected a text or its words, found {_kind(given)}")
    example = TagExample("" if identity is None else str(identity), words, ())
    return Asked(example, identity, text, places)


def _joined(words: Sequence[str]) -> tuple[str, tuple[Word, ...]]:
    """Words with a blank between them, and where each lies."""
    places: list[Word] = []
    begin = 0
    for word in words:
        places.append((begin, begin + len(word)))
        begin += len(word) + 1
    return " ".join(words), tuple(places)


def _present(fields: Mapping[str, Any], name: str, own: Sequence[str]) -> Any:
    if name not in fields:
        found = ", ".join(repr(str(key)) for key in list(fields)[:8]) or "nothing"
        raise UserError(f"no field '{name}'; found {found}; this benchmark's own fields are {', '.join(own)}")
    return fields[name]


def _field(fields: Mapping[str, Any], name: str, own: Sequence[str]) -> str:
    return _text(_present(fields, name, own), name)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"'{name}': expected text, found {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"'{name}': holds half of a surrogate pair, which is no character") from None
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{len(value)} values"
    return {"str": "one text", "dict": "an object"}.get(type(value).__name__, type(value).__name__)
