"""The head "span": the answer to a question as a slice of its context, or no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.head_specs.base import Examples, HeadSpec, NoAnswer, Record, Records, Scores, WrongRow, excerpt
from model.benchmarks.readers import squad_json
from model.benchmarks.readers.examples import Answer, SpanExample
from model.benchmarks.readers.row_errors import MalformedRow, RowErrors
from model.benchmarks.readers.row_reader import RowReader, text_of
from model.benchmarks.readers.rows import Row
from model.benchmarks.readers.squad_json import MISPLACED, is_placed
from model.benchmarks.requests import Fields
from model.benchmarks.scoring import squad_scores
from model.benchmarks.scoring.metrics import Formula, mean_percent
from model.benchmarks.sources import SourceFiles
from model.common.errors import UserError


class SpanReader(RowReader):
    """Reads questions from columns.

    The column of answers holds lists as in the hub's SQuAD (`{"text": [...], "answer_start": [...]}`, or a list of
    such objects), or the text of one answer, whose position is in a column of its own or is the first occurrence.
    """

    def _columns(self) -> tuple[list[str], list[str]]:
        return [self.row.first, str(self.row.second)], [self.row.answer_start] if self.row.answer_start else []

    def _example(self, row: Row) -> SpanExample:
        question, context = self.text(row, self.row.first), self.text(row, str(self.row.second))
        answers = self._answers(row, context)
        if not answers and not self.row.unanswerable and self._labeled:
            raise MalformedRow("no answer; expected at least one")
        if answers and not is_placed(context, answers[0]):
            if self._training:
                raise MalformedRow(MISPLACED)
            self.errors.note(self.table.path, row[0], f"rows of which {MISPLACED}")
        return SpanExample(self.id_of(row), question, context, answers)

    def _answers(self, row: Row, context: str) -> tuple[Answer, ...]:
        value = row[1][self.at[self.row.label]] if self.row.label in self.at else None
        if value is None or value == "":
            return ()
        if isinstance(value, str):
            column = self.row.answer_start if self.row.answer_start in self.at else None
            start = context.find(value) if column is None else row[1][self.at[column]]
            return (Answer(value, _integer(start, str(column))),)
        return _listed_answers(value, self.row.label)


class SpanSpec(HeadSpec):
    """Answers to questions about contexts (SQuAD)."""

    name = "span"
    implementation = "model.heads.question_answering:SpanHead"
    reader = SpanReader
    custom_columns = {
        "question": ("first", "question"),
        "context": ("second", "context"),
        "answers": ("label", "answers"),
        "answer_start": ("answer_start", "answer_start"),
        "id": ("identity", "id"),
    }
    metrics = ("f1", "exact")
    all_metrics = metrics
    paper_benchmark = "squad1"
    ranked_by = "F1"
    has_labels = False
    skips_malformed_training_rows = True  # such files often have answers that are not in their context
    relative_cost = 2

    def num_outputs(self, row: Benchmark) -> int:
        return 2

    def read(self, source: SourceFiles, errors: RowErrors, training: bool, labeled: bool) -> Sequence[Any]:
        if source.ending != ".json":
            return super().read(source, errors, training, labeled)
        unanswerable = source.row.unanswerable
        return [one for path in source.paths for one in squad_json.read_questions(path, unanswerable, training, errors)]

    def may_omit_predictions(self, row: Benchmark) -> bool:
        return not row.unanswerable  # as in the script of v1.1; the script of v2.0 ends with an error

    def parse_prediction(self, row: Benchmark, where: str, value: Any, example: Any) -> Any:
        if not isinstance(value, str):
            raise UserError(f"{where}: expected a text, got {value!r}")
        return value

    def score(self, row: Benchmark, examples: Examples, predictions: Sequence[Any], no_answer: NoAnswer) -> Scores:
        answers = {example.id: [answer.text for answer in example.answers] for example in examples}
        found = {one.id: prediction for one, prediction in zip(examples, predictions) if prediction is not None}
        if not row.unanswerable:
            official = squad_scores.evaluate_v1(answers, found)
            return {"scores": squad_scores.by_our_names(official), "official": official}
        threshold = squad_scores.DEFAULT_THRESHOLD if no_answer.threshold is None else no_answer.threshold
        official = squad_scores.evaluate_v2(answers, found, no_answer.probs, threshold)
        report: dict[str, Any] = {"scores": squad_scores.by_our_names(official), "official": official}
        if no_answer.probs is not None:
            texts, gold = [found[question] for question in answers], list(answers.values())
            odds = [no_answer.probs[question] for question in answers]
            best = squad_scores.best_threshold(texts, odds, gold)
            scores = squad_scores.scores_of(squad_scores.apply_threshold(texts, odds, best), gold, True)
            report["best"] = {"null_threshold": best, "scores": scores}
        return report

    def row_counts(self, row: Benchmark, metric: str, records: Records) -> Any:
        column = ("exact", "f1").index(metric)
        return [
            [squad_scores.question_scores(one["prediction"], one["label"], row.unanswerable)[column]] for one in records
        ]

    def formula(self, metric: str) -> Formula:
        return mean_percent  # f1, too, is a mean over questions

    def wrong_row(self, row: Benchmark, example: Any, record: Record) -> WrongRow | None:
        gold = squad_scores.gold_answers(record["label"]) if row.unanswerable else list(record["label"])
        if not gold or squad_scores.exact_match(record["prediction"], gold):
            return None
        start = example.answers[0].start if example.answers else max(0, example.context.find(record["prediction"]))
        answers = dict.fromkeys(answer for answer in gold if answer)
        f1 = squad_scores.token_f1(record["prediction"], gold, row.unanswerable)
        return 1.0 - f1, {
            "value": round(100 * f1, 1),
            "texts": [["question", excerpt(example.question)], ["context", excerpt(example.context, start)]],
            "prediction": excerpt(record["prediction"]) or "no answer",
            "label": excerpt(" | ".join(answers)) or "no answer",
        }

    def request_columns(self, row: Benchmark) -> tuple[str, ...]:
        return (row.first or "question", row.second or "context")

    def example(self, row: Benchmark, fields: Fields) -> Any:
        question, context = fields.texts(("question", "context"))
        return SpanExample(fields.example_id, question, context, ())


def _listed_answers(value: Any, column: str) -> tuple[Answer, ...]:
    """Answers in the two forms of the hub's SQuAD."""
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        starts = value.get("answer_start")
        if not isinstance(starts, list) or len(starts) != len(value["text"]):
            raise MalformedRow(f"expected one 'answer_start' for each 'text' in column {column!r}")
        value = [{"text": text, "answer_start": start} for text, start in zip(value["text"], starts)]
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise MalformedRow(f"expected answers ('text' and 'answer_start') in column {column!r}, found {_shown(value)}")
    return tuple(
        Answer(text_of(one.get("text"), f"{column}.text"), _integer(one.get("answer_start"), f"{column}.answer_start"))
        for one in value
    )


def _integer(value: Any, column: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise MalformedRow(f"expected an integer in column {column!r}, found {_shown(value)}") from None


def _shown(value: Any) -> str:
    return repr(value) if len(repr(value)) < 40 else type(value).__name__
