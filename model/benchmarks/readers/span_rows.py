"""Questions about contexts from files with columns: the hub's SQuAD, and tables with an answer per row."""

from __future__ import annotations

from typing import Any

from model.benchmarks.readers.examples import Answer, SpanExample
from model.benchmarks.readers.row_faults import Malformed
from model.benchmarks.readers.rows import Row
from model.benchmarks.readers.text_rows import RowReader, text_of

MISPLACED = "the answer is not in its context"


class SpanReader(RowReader):
    """A column of answers holds what the hub's SQuAD has (`{"text": [...], "answer_start": [...]}`, or a list of such
    for each answer), or the answer's text alone, with its place in a column of its own or at its first place."""

    def _columns(self) -> tuple[list[str], list[str]]:
        return [self.row.first, str(self.row.second)], [self.row.answer_start] if self.row.answer_start else []

    def _example(self, row: Row) -> SpanExample:
        question, context = self.text(row, self.row.first), self.text(row, str(self.row.second))
        answers = self._answers(row, context)
        if not answers and not self.row.unanswerable and self._labelled:
            raise Malformed("no answer; expected at least one")
        if answers and not is_placed(context, answers[0]):
            if self._training:
                raise Malformed(MISPLACED)
            self.faults.note(self.table.path, row[0], f"rows of which {MISPLACED}")
        return SpanExample(self.name(row), question, context, answers)

    def _answers(self, row: Row, context: str) -> tuple[Answer, ...]:
        value = row[1][self.at[self.row.label]] if self.row.label in self.at else None
        if value is None or value == "":
            return ()
        if isinstance(value, str):
            place = self.row.answer_start if self.row.answer_start in self.at else None
            start = context.find(value) if place is None else row[1][self.at[place]]
            return (Answer(value, _whole(start, str(place))),)
        return answers_of(value, self.row.label)


def answers_of(value: Any, column: str) -> tuple[Answer, ...]:
    """Answers as the hub's SQuAD has them.

    Raises:
        Malformed: they are not.
    """
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        starts = value.get("answer_start")
        if not isinstance(starts, list) or len(starts) != len(value["text"]):
            raise Malformed(f"as many 'answer_start' as 'text' were expected in column {column!r}")
        value = [{"text": text, "answer_start": start} for text, start in zip(value["text"], starts)]
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Malformed(f"expected answers ('text' and 'answer_start') in column {column!r}, found {_shown(value)}")
    return tuple(
        Answer(text_of(one.get("text"), f"{column}.text"), _whole(one.get("answer_start"), f"{column}.answer_start"))
        for one in value
    )


def is_placed(context: str, answer: Answer) -> bool:
    """Whether an answer is where it is said to be."""
    start, text = answer.start, answer.text
    return start >= 0 and text.strip() != "" and context[start : start + len(text)] == text


def _whole(value: Any, column: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise Malformed(f"expected a whole number in column {column!r}, found {_shown(value)}") from None


def _shown(value: Any) -> str:
    return repr(value) if len(repr(value)) < 40 else type(value).__name__
