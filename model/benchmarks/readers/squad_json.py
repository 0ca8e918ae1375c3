"""SQuAD's JSON files, v1.1 and v2.0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.benchmarks.readers.examples import Answer, SpanExample
from model.benchmarks.readers.row_errors import RowErrors
from model.benchmarks.readers.rows import read_text
from model.common.errors import UserError

MISPLACED = "the answer is not in its context"


def read_questions(path: Path, unanswerable: bool, training: bool, errors: RowErrors) -> list[SpanExample]:
    """Read questions in file order.

    Training questions are skipped and counted if their answer is not at the given position of the context, or if they
    have no answer although the benchmark has no unanswerable questions. In dev files a misplaced answer is only
    counted, and a missing answer is an error.

    Raises:
        UserError: the JSON is malformed, or a part of the structure is missing; the message says where.
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
            errors.skip(path, where, "no answer; expected at least one")
            continue
        if answers and not is_placed(context, answers[0]):
            if training:
                errors.skip(path, where, MISPLACED)
                continue
            errors.note(path, where, f"rows of which {MISPLACED}")
        identity = errors.unique_id(path, where, _field(path, where, question, "id", str))
        examples.append(SpanExample(identity, _field(path, where, question, "question", str), context, answers))
    return examples


def _questions(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each question as (location in the file, context, question)."""
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


def is_placed(context: str, answer: Answer) -> bool:
    """Whether an answer is at the position that it gives."""
    start, text = answer.start, answer.text
    return start >= 0 and text.strip() != "" and context[start : start + len(text)] == text
