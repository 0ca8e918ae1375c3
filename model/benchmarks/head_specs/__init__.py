"""The registry of heads: `HEAD_SPECS` maps names to specs, each of which names its class in `model.heads`."""

from __future__ import annotations

from typing import Any

from model.benchmarks.head_specs.base import HeadSpec
from model.benchmarks.head_specs.spans import SpanSpec
from model.benchmarks.head_specs.text_labels import ChoiceSpec, ClassesSpec, RegressionSpec
from model.benchmarks.head_specs.word_tags import TagsSpec
from model.benchmarks.readers.examples import Example
from model.benchmarks.requests import Fields, Request, as_text
from model.benchmarks.table import Benchmark

HEAD_SPECS: dict[str, HeadSpec] = {
    "classes": ClassesSpec(),
    "regression": RegressionSpec(),
    "choice": ChoiceSpec(),
    "span": SpanSpec(),
    "tags": TagsSpec(),
}


def request_of(row: Benchmark, given: Any) -> Request:
    """Convert an input to a request for a benchmark's model.

    For one text, `given` is a string; for two texts, a sequence of both; for tags, a string or the sequence of its
    words; for choice, a context and the sequence of its endings. In each case also a mapping with the names of the
    benchmark's columns, or with `text` and `text_pair`, `question` and `context`, `words`, `context` and `endings`;
    `id` is returned with the response. A `Request` or an example is used as it is.

    Raises:
        UserError: a field is missing or is not text.
    """
    if isinstance(given, Request):
        return given
    if isinstance(given, Example):
        names: tuple[str, ...] = type(given).__slots__
        for name in names:
            value = getattr(given, name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str):
                    as_text(text, name)
        return Request(given, given.id)
    spec = HEAD_SPECS[row.head]
    return spec.request(row, Fields(given, spec.request_columns(row), row.identity))
