"""SQuAD's JSON files, v1.1 and v2.0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.benchmarks.readers.examples import Answer, Part, SpanExample
from model.benchmarks.readers.row_faults import Faults
from model.benchmarks.readers.rows import read_text
from model.benchmarks.readers.span_rows import MISPLACED, is_placed
from model.common.errors import UserError


def read(path: Path, unanswerable: bool, training: bool) -> Part:
    """Questions in the file's order; see `read_questions`."""
    faults = Faults(skips=training)
    examples = read_questions(path, unanswerable, training, faults)
    return Part(path, examples, faults.num_skipped, faults.skipped, faults.remarks)


def read_questions(path: Path, unanswerable: bool, training: bool, faults: Faults) -> list[SpanExample]:
    """Questions in the file's order.

    A training question whose answer is not in its context at the given place, or that has none though the
    benchmark says that every question has (`unanswerable` off), is skipped and counted; for dev the latter
    is refused, and the former counted.

    Raises:
        UserError: broken JSON, or a part of the structure is missing; the message says where.
    """
    examples: list[SpanExample] = []
    for where, context, question in _questions(path):
        answers = tuple(
            Answer(_field(path, place, answer, "text", str), _field(path, place, answer, "answer_start", int))
            for place, answer in _items(path, where, question, "answers")
        )
        if question.get("is_impossible", False):
            if not unanswerable:
                raise UserError(f"{path}: {where}: a question without an answer, which is SQuAD v2.0; expected v1.1")
            answers = ()
        elif not answers and not unanswerable:
            if not training:
                raise UserError(f"{path}: {where}: no answer; expected at least one")
            faults.skip(path, where, "no answer; expected at least one")
            continue
        if answers and not is_placed(context, answers[0]):
            if training:
                faults.skip(path, where, MISPLACED)
                continue
            faults.note(path, where, f"rows of which {MISPLACED}")
        identity = faults.identity(path, where, _field(path, where, question, "id", str))
        examples.append(SpanExample(identity, _field(path, where, question, "question", str), context, answers))
    return examples


def _questions(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each question as (its place in the file, its context, itself)."""
    try:
        document = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: row {error.lineno}: not JSON ({error.msg}); fetch the file again") from None
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected an object with 'data', found {type(document).__name__}")
    for article_place, article in _items(path, "", document, "data"):
        for place, paragraph in _items(path, article_place, article, "paragraphs"):
            context = _field(path, place, paragraph, "context", str)
            for question_place, question in _items(path, place, paragraph, "qas"):
                yield question_place, context, question


def _items(path: Path, where: str, node: dict[str, Any], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    prefix = f"{where}." if where else ""
    for number, item in enumerate(_field(path, where, node, key, list)):
        place = f"{prefix}{key}[{number}]"
        if not isinstance(item, dict):
            raise UserError(f"{path}: {place}: expected an object, found {type(item).__name__}")
        yield place, item


def _field(path: Path, where: str, node: dict[str, Any], key: str, kind: type) -> Any:
    value = node.get(key)
    if not isinstance(value, kind):
        found = f"found {type(value).__name__}" if key in node else "it is missing"
        raise UserError(f"{path}: {where or 'document'}: expected '{key}' ({kind.__name__}), {found}")
    return value
