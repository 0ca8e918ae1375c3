"""The head "span": the answer to a question as a slice of its context, or no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model.benchmarks.head_specs.base import Examples, FieldType, HeadSpec, NoAnswer, Record, Scores, WrongRow, excerpt
from model.benchmarks.readers.examples import Answer, Example, SpanExample
from model.benchmarks.readers.row_reader import RowReader, text_of
from model.benchmarks.readers.rows import MalformedRow, Row, RowErrors
from model.benchmarks.readers.squad_json import check_answers, read_questions
from model.benchmarks.requests import Fields, Request
from model.benchmarks.scoring import squad_scores
from model.benchmarks.scoring.metrics import Formula, mean_percent
from model.benchmarks.sources import SourceFiles
from model.benchmarks.table import Benchmark
from model.common.errors import UserError, shown


class SpanSpec(HeadSpec):
    implementation = "model.heads.question_answering:SpanHead"
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
    skips_malformed_training_rows = True  # published files often contain answers that are not in their context
    relative_cost = 2

    def num_outputs(self, row: Benchmark) -> int:
        return 2

    def read(self, source: SourceFiles, errors: RowErrors, labeled: bool) -> Examples:
        if source.ending != ".json":
            return super().read(source, errors, labeled)
        return [one for path in source.paths for one in read_questions(path, source.row.unanswerable, errors)]

    def read_row(self, reader: RowReader, row: Row) -> Example:
        question, context = reader.text(row, reader.row.first), reader.text(row, str(reader.row.second))
        answers = _answers(reader, row, context)
        if answers or reader.labeled:
            check_answers(reader.path, row[0], context, answers, reader.row.unanswerable, reader.errors)
        return SpanExample(reader.id_of(row), question, context, answers)

    def may_omit_predictions(self, row: Benchmark) -> bool:
        return not row.unanswerable  # as in the script of v1.1; the script of v2.0 ends with an error

    def parse_prediction(self, row: Benchmark, where: str, value: Any, example: Any) -> Any:
        if not isinstance(value, str):
            raise UserError(f"{where}: expected a text, got {shown(value)}")
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

    def row_counts(self, row: Benchmark, metric: str, records: Sequence[Record]) -> Any:
        scored = (squad_scores.question_scores(one["prediction"], one["label"], row.unanswerable) for one in records)
        return [[exact if metric == "exact" else f1] for exact, f1 in scored]

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

    def response_types(self) -> dict[str, FieldType]:
        numbers: dict[str, FieldType] = dict.fromkeys(("start", "end", "score"), "number")
        return {"prediction": "string", **numbers}

    def request(self, row: Benchmark, fields: Fields) -> Request:
        question, context = fields.texts(("question", "context"))
        return Request(SpanExample(fields.example_id, question, context, ()), fields.id)


def _answers(reader: RowReader, row: Row, context: str) -> tuple[Answer, ...]:
    """Read the answers in a row.

    The column holds lists as in the hub's SQuAD (`{"text": [...], "answer_start": [...]}`, or a list of such
    objects), or the text of one answer, whose position is in a separate column or is its first occurrence.
    """
    column, start_column = reader.row.label, reader.row.answer_start
    value = reader.field(row, column)
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        start = reader.field(row, start_column) if start_column in reader.at else context.find(value)
        return (Answer(value, _integer(start, str(start_column))),)
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        starts = value.get("answer_start")
        if not isinstance(starts, list) or len(starts) != len(value["text"]):
            raise MalformedRow(f"expected one 'answer_start' for each 'text' in column {column!r}")
        value = [{"text": text, "answer_start": start} for text, start in zip(value["text"], starts)]
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise MalformedRow(f"expected answers ('text' and 'answer_start') in column {column!r}, found {shown(value)}")
    return tuple(
        Answer(text_of(one.get("text"), f"{column}.text"), _integer(one.get("answer_start"), f"{column}.answer_start"))
        for one in value
    )


def _integer(value: Any, column: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise MalformedRow(f"expected an integer in column {column!r}, found {shown(value)}") from None
