"""SQuAD's JSON files, v1.1 and v2.0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from model.benchmarks.readers.examples import Answer, SpanExample
from model.benchmarks.readers.rows import MalformedRow, RowErrors, parse_json, read_text
from model.common.errors import UserError

_MISPLACED = "the answer is not in its context"


def read_questions(path: Path, unanswerable: bool, errors: RowErrors) -> list[SpanExample]:
    """Read questions in file order; see `check_answers` for malformed ones.

    Raises:
        UserError: the JSON is malformed or incomplete; the message gives the location.
    """
    examples: list[SpanExample] = []
    for where, context, question in _questions(path):
        answers = tuple(
            Answer(_field(path, place, answer, "text", str), _field(path, place, answer, "answer_start", int))
            for place, answer in _items(path, where, question, "answers")
        )
        if question.get("is_impossible", False):
            if not unanswerable:
                raise UserError(f"{path}: {where}: a question has no answer, as in SQuAD v2.0; expected v1.1")
            answers = ()
        try:
            check_answers(path, where, context, answers, unanswerable, errors)
        except MalformedRow as error:
            errors.malformed(path, where, str(error))
            continue
        identity = errors.unique_id(path, where, _field(path, where, question, "id", str))
        examples.append(SpanExample(identity, _field(path, where, question, "question", str), context, answers))
    return examples


def _questions(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    document = parse_json(path, read_text(path), "fetch the file again")
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


def check_answers(
    path: Path, where: int | str, context: str, answers: Sequence[Answer], unanswerable: bool, errors: RowErrors
) -> None:
    """Check the answers to one question.

    Raises:
        MalformedRow: a required answer is missing, or an answer is not at its stated position and rows may be skipped;
            if they may not, such an answer is only recorded.
    """
    if not answers:
        if not unanswerable:
            raise MalformedRow("no answer; expected at least one")
        return
    start, text = answers[0].start, answers[0].text
    if start >= 0 and text.strip() and context[start : start + len(text)] == text:
        return
    if errors.skips:
        raise MalformedRow(_MISPLACED)
    errors.note(path, where, f"rows of which {_MISPLACED}")
