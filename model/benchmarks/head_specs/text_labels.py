"""The heads "classes" and "regression" (a label or score for a sentence or pair) and "choice" (the right ending)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model.benchmarks.head_specs.base import (
    ClassCounts,
    Examples,
    FieldType,
    HeadSpec,
    NoAnswer,
    Record,
    Scores,
    WrongRow,
    as_number,
    excerpt,
)
from model.benchmarks.readers.examples import ChoiceExample, Example, TextExample
from model.benchmarks.readers.row_reader import RowReader, text_of
from model.benchmarks.readers.rows import MalformedRow, Row, RowErrors, read_table
from model.benchmarks.requests import Fields, Request, as_text, describe
from model.benchmarks.scoring.metrics import CORRELATIONS, confusion_matrix, label_scores, moments
from model.benchmarks.sources import SourceFiles, train_source
from model.benchmarks.table import Benchmark
from model.common.errors import UserError, shown


class ClassesSpec(HeadSpec):
    implementation = "model.heads.sequence_classification:ClassesHead"
    custom_columns = {
        "first": ("first", "text"),
        "second": ("second", None),
        "label": ("label", "label"),
        "id": ("identity", "id"),
    }
    metrics: tuple[str, ...] = ("accuracy",)
    all_metrics: tuple[str, ...] = ("accuracy", "f1", "macro_f1", "matthews")
    paper_benchmark = "sst2"
    dtype: type[np.generic] = np.int64  # of labels and predictions

    def read_row(self, reader: RowReader, row: Row) -> Example:
        first = reader.text(row, reader.row.first)
        second = reader.text(row, reader.row.second) if reader.row.second else None
        label = self._label(reader, row)
        return TextExample(reader.id_of(row), first, second, label)

    def _label(self, reader: RowReader, row: Row) -> int | float | None:
        return reader.label(row)

    def complete_custom(self, row: Benchmark, default_metrics: bool) -> Benchmark:
        if "f1" in row.metrics and not row.positive:
            raise UserError("f1 needs a label: set `positive`, or use macro_f1 for the mean over all labels")
        return row

    def parse_prediction(self, row: Benchmark, where: str, value: Any, example: Any) -> Any:
        label = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        label = row.label_of(label)
        if label not in row.labels:
            known = ", ".join((*row.labels, *row.label_names.values()))
            raise UserError(f"{where}: unknown label {shown(value)}; expected one of {known}")
        return row.labels.index(label)

    def score(self, row: Benchmark, examples: Examples, predictions: Sequence[Any], no_answer: NoAnswer) -> Scores:
        return {"scores": self.scores(row, gold_labels(examples, self.dtype), np.array(predictions, dtype=self.dtype))}

    def scores(self, row: Benchmark, gold: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> dict[str, float]:
        """Compute the benchmark's metrics, 0 to 100, from label numbers, (rows,) each."""
        positive = None if row.positive is None else row.labels.index(row.positive)
        return label_scores(row.metrics, gold, predicted, len(row.labels), positive)

    def row_counts(self, row: Benchmark, metric: str, records: Sequence[Record]) -> Any:
        if metric in ("matthews", "macro_f1"):  # one-hot confusion matrices
            number = {label: index for index, label in enumerate(row.labels)}
            indices = [number[record["label"]] * len(number) + number[record["prediction"]] for record in records]
            return np.eye(len(number) ** 2)[indices]
        if metric == "f1":
            found = [(record["label"] == row.positive, record["prediction"] == row.positive) for record in records]
            return [[gold and predicted, predicted, gold] for gold, predicted in found]
        return [[record["label"] == record["prediction"]] for record in records]

    def class_counts(self, row: Benchmark, records: Sequence[Record]) -> ClassCounts | None:
        number = {label: index for index, label in enumerate(row.labels)}
        gold, predicted = (np.array([number[one[key]] for one in records]) for key in ("label", "prediction"))
        confusion = confusion_matrix(gold, predicted, len(number))
        counts = zip(confusion.diagonal().tolist(), confusion.sum(axis=0).tolist(), confusion.sum(axis=1).tolist())
        return ClassCounts([row.label_name(label) for label in row.labels], list(counts), confusion.tolist())

    def wrong_row(self, row: Benchmark, example: Any, record: Record) -> WrongRow | None:
        if record["prediction"] == record["label"]:
            return None
        logits = record.get("logits") or []
        confidence = 1.0 / sum(math.exp(value - max(logits)) for value in logits) if logits else 0.0
        return confidence, {
            "texts": self._shown(row, example),
            "prediction": str(record["prediction"]),
            "label": str(record["label"]),
        }

    def _shown(self, row: Benchmark, example: Any) -> list[list[str]]:
        texts = [[row.first or "text", excerpt(example.first)]]
        if example.second is not None:
            texts.append([row.second or "second text", excerpt(example.second)])
        return texts

    def response_types(self) -> dict[str, FieldType]:
        return {"prediction": "string", "score": "number", "probabilities": "numbers"}

    def request(self, row: Benchmark, fields: Fields) -> Request:
        first, *rest = fields.texts(("text", "text_pair") if row.second else ("text",))
        return Request(TextExample(fields.example_id, first, rest[0] if rest else None, None), fields.id)


class RegressionSpec(ClassesSpec):
    implementation = "model.heads.sequence_classification:RegressionHead"
    dtype = np.float64
    metrics = ("spearman", "pearson")
    all_metrics = metrics
    paper_benchmark = "stsb"
    ranked_by = "distance"
    has_labels = False
    counts_wrong_rows = False

    def num_outputs(self, row: Benchmark) -> int:
        return 1

    def response_types(self) -> dict[str, FieldType]:
        return {"prediction": "number"}

    def _label(self, reader: RowReader, row: Row) -> float | None:
        field = reader.field(row, reader.row.label)
        try:
            score = float(field)
        except (TypeError, ValueError):
            score = math.nan
        if not reader.labeled and (score == -1.0 or field is None):
            return None
        if not math.isfinite(score):
            raise MalformedRow(f"expected a number in column {reader.row.label!r}, got {shown(field)}")
        return score

    def parse_prediction(self, row: Benchmark, where: str, value: Any, example: Any) -> Any:
        return as_number(where, value)

    def scores(self, row: Benchmark, gold: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> dict[str, float]:
        """Compute the benchmark's metrics, 0 to 100, from scores, (rows,) each."""
        return {name: CORRELATIONS[name](gold.astype(np.float64), predicted) for name in row.metrics}

    def class_counts(self, row: Benchmark, records: Sequence[Record]) -> ClassCounts | None:
        return None

    def row_counts(self, row: Benchmark, metric: str, records: Sequence[Record]) -> Any:
        middle = float(np.mean([record["label"] for record in records]))
        return moments(*(np.array([record[key] for record in records]) - middle for key in ("label", "prediction")))

    def wrong_row(self, row: Benchmark, example: Any, record: Record) -> WrongRow | None:
        return abs(float(record["prediction"]) - float(record["label"])), {
            "texts": self._shown(row, example),
            "prediction": f"{record['prediction']:.2f}",
            "label": f"{record['label']:.2f}",
        }


class ChoiceSpec(ClassesSpec):
    implementation = "model.heads.sequence_classification:ChoiceHead"
    custom_columns = {
        "context": ("first", "context"),
        "start": ("second", None),
        "endings": ("endings", "endings"),
        "label": ("label", "label"),
        "id": ("identity", "id"),
    }
    all_metrics = ("accuracy",)
    paper_benchmark = "swag"

    def num_outputs(self, row: Benchmark) -> int:
        return 1

    def sequences_per_row(self, row: Benchmark) -> int:
        return len(row.labels)

    def read_row(self, reader: RowReader, row: Row) -> Example:
        """Read a row; the common beginning, if there is such a column, is put before each ending."""
        context = reader.text(row, reader.row.first)
        start = text_of(reader.field(row, reader.row.second), reader.row.second) if reader.row.second else ""
        endings = tuple(f"{start} {ending}".strip() for ending in _endings(reader, row))
        if not all(endings):
            reader.errors.note(reader.path, row[0], "rows with an empty ending")
        label = reader.label(row)
        return ChoiceExample(reader.id_of(row), context, endings, label)

    def find_labels(self, row: Benchmark, data_dir: Path) -> tuple[str, ...]:
        num_endings = len(row.endings)
        if num_endings < 2:
            num_endings = _num_listed_endings(row.endings[0], train_source(row, data_dir))
        return tuple(map(str, range(num_endings)))

    def complete_custom(self, row: Benchmark, default_metrics: bool) -> Benchmark:
        if len(row.endings) not in (1, len(row.labels)):
            raise UserError(f"labels: {len(row.labels)} labels for {len(row.endings)} columns of endings")
        return row

    def class_counts(self, row: Benchmark, records: Sequence[Record]) -> ClassCounts | None:
        return None  # the labels are positions of endings

    def _shown(self, row: Benchmark, example: Any) -> list[list[str]]:
        endings = [[label, excerpt(ending)] for label, ending in zip(row.labels, example.endings)]
        return [["context", excerpt(example.context)], *endings]

    def request_columns(self, row: Benchmark) -> tuple[str, ...]:
        return (*super().request_columns(row), *row.endings)

    def request_types(self, row: Benchmark) -> dict[str, FieldType]:
        if len(row.endings) > 1:
            return super().request_types(row)
        return {"context": "string", "endings": "strings"}  # accepted whatever the columns are called

    def response_types(self) -> dict[str, FieldType]:
        return super().response_types() | {"text": "string"}

    def request(self, row: Benchmark, fields: Fields) -> Request:
        given, start = fields.given, ""
        if fields.has_columns:
            start = fields.text(row.second) if row.second else ""
            columns = [fields.value(name) for name in row.endings]
            given = (fields.value(row.first), columns[0] if len(columns) == 1 else columns)
        elif fields.by_name is not None:
            given = (fields.value("context"), fields.value("endings"))
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
            raise UserError(f"expected a context and its endings, found {describe(given)}")
        context = as_text(given[0], "context")
        if not isinstance(given[1], Sequence) or isinstance(given[1], str):
            raise UserError(f"'endings': expected a list of texts, found {describe(given[1])}")
        endings = [f"{start} {as_text(ending, 'endings')}".strip() for ending in given[1]]
        if len(endings) != len(row.labels):
            raise UserError(f"'endings': expected {len(row.labels)}, found {len(endings)}")
        return Request(ChoiceExample(fields.example_id, context, tuple(endings), None), fields.id)


def gold_labels(examples: Sequence[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return the labels of text or choice examples, (rows,); -1 for unlabeled rows."""
    return np.array([-1 if example.label is None else example.label for example in examples], dtype=dtype)


def _endings(reader: RowReader, row: Row) -> list[str]:
    fields = [(name, reader.field(row, name)) for name in reader.row.endings]
    if len(fields) == 1:
        name, value = fields[0]
        if not isinstance(value, list):
            raise MalformedRow(f"expected a list of endings in column {name!r}, found {type(value).__name__}")
        fields = [(name, ending) for ending in value]
    if len(fields) != len(reader.row.labels):
        raise MalformedRow(f"{len(fields)} endings where {len(reader.row.labels)} were expected")
    return [text_of(value, name) for name, value in fields]


def _num_listed_endings(column: str, source: SourceFiles) -> int:
    path = source.paths[0]
    header, rows = read_table(path, source.ending, RowErrors(skips=True), [column], columns=source.row.columns)
    for _, fields in rows:
        endings = fields[header.index(column)]
        if isinstance(endings, list) and len(endings) > 1:
            return len(endings)
    raise UserError(f"{path}: no row has a list of two or more endings in column {column!r}")
