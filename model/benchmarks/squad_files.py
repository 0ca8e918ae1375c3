"""SQuAD's JSON files, v1.1 and v2.0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.benchmarks.examples import Answer, Part, SpanExample
from model.benchmarks.rows import read_text
from model.errors import UserError


def read(path: Path, unanswerable: bool, training: bool) -> Part:
    """Questions in the file's order.

    A training question whose answer is not in its context at the given place, or that has none though the
    benchmark says that every question has (`unanswerable` off), is skipped and counted; for dev the latter
    is refused.

    Raises:
        UserError: broken JSON, or a part of the structure is missing; the message says where.
    """
    examples: list[SpanExample] = []
    num_skipped = 0
    for where, context, question in _questions(path):
        answers = tuple(
            Answer(_field(path, place, answer, "text", str), _field(path, place, answer, "answer_start", int))
            for place, answer in _items(path, where, question, "answers")
        )
        if question.get("is_impossible", False):
            if not unanswerable:
                raise UserError(f"{path}: {where}: a question without an answer, which is SQuAD v2.0; expected v1.1")
            answers = ()
        elif not answers and not training and not unanswerable:
            raise UserError(f"{path}: {where}: no answer; expected at least one")
        if training and not _usable(context, answers, unanswerable):
            num_skipped += 1
            continue
        identity = _field(path, where, question, "id", str)
        examples.append(SpanExample(identity, _field(path, where, question, "question", str), context, answers))
    return Part(path, examples, num_skipped)


def _usable(context: str, answers: tuple[Answer, ...], unanswerable: bool) -> bool:
    """Whether the first answer, which training points at, is where the file says."""
    if not answers:
        return unanswerable
    start, text = answers[0].start, answers[0].text
    return start >= 0 and text.strip() != "" and context[start : start + len(text)] == text


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
