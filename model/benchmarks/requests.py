"""Requests: user input for a fine-tuned model, converted to examples like those in training files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.common.errors import UserError

CharSpan = tuple[int, int]  # first character, one past the last


@dataclass(frozen=True, slots=True)
class Request:
    example: Any
    """The input as an example without a label, as if it were read from a benchmark file."""
    id: Any = None
    text: str = ""
    """For tags: the text that contains the words, if the user passed a text."""
    word_spans: tuple[CharSpan, ...] = ()
    """For tags: the position of each word in `text`."""


def num_characters(given: Any) -> int:
    """Estimate the number of characters in a `Request`, or in a text or its parts."""
    if isinstance(given, str):
        return len(given)
    if isinstance(given, Request):
        given = [getattr(given.example, name) for name in given.example.__slots__]
    if isinstance(given, dict):
        given = list(given.values())
    return sum(map(num_characters, given)) if isinstance(given, (list, tuple)) else 8


class Fields:
    """One user input: a mapping with named fields, or a bare value."""

    def __init__(self, given: Any, columns: Sequence[str], id_column: str | None) -> None:
        self.given = given
        self.columns = columns
        self.by_name: Mapping[str, Any] | None = given if isinstance(given, Mapping) else None
        named = self.by_name or {}
        self.id = named["id"] if "id" in named else named.get(id_column) if id_column is not None else None
        if isinstance(self.id, str):
            as_text(self.id, "id")
        elif not isinstance(self.id, int | float | None):
            raise UserError(f"'id': expected a text or a number, found {describe(self.id)}")
        self.example_id = "" if self.id is None else str(self.id)
        self.has_columns = self.by_name is not None and all(name in named for name in columns)
        """Check whether the input names all of the benchmark's columns."""

    def texts(self, names: Sequence[str]) -> list[str]:
        """Return the texts called `names`, or the columns. Raises UserError if one is missing or is not text."""
        if self.by_name is not None:
            return [self.text(name) for name in (self.columns if self.has_columns else names)]
        if len(names) == 1 and isinstance(self.given, str):
            return [as_text(self.given, names[0])]
        if isinstance(self.given, Sequence) and not isinstance(self.given, str) and len(self.given) == len(names):
            return [as_text(text, name) for text, name in zip(self.given, names)]
        expected = "a text" if len(names) == 1 else f"{len(names)} texts ({', '.join(self.columns)})"
        raise UserError(f"expected {expected}, found {describe(self.given)}")

    def value(self, name: str) -> Any:
        """Return a named field. Raises UserError if it is missing."""
        assert self.by_name is not None
        if name not in self.by_name:
            found = ", ".join(repr(str(key)[:40]) for key in list(self.by_name)[:8]) or "nothing"
            known = ", ".join(self.columns)
            raise UserError(f"no field '{name}'; found {found}; the fields of this benchmark are {known}")
        return self.by_name[name]

    def text(self, name: str) -> str:
        return as_text(self.value(name), name)


def as_text(value: Any, name: str) -> str:
    """Check that `value` is text that can be encoded, and return it. Raises UserError if it is not."""
    if not isinstance(value, str):
        raise UserError(f"'{name}': expected text, found {describe(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"'{name}': contains an unpaired surrogate, which is not a valid character") from None
    return value


def describe(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{len(value)} values"
    return {"str": "one text", "dict": "an object"}.get(type(value).__name__, type(value).__name__)
