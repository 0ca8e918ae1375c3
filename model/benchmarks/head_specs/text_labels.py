"""The heads "classes" and "regression": a label or a score for a sentence or a pair, and "choice": the right ending."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.head_specs.base import (
    CustomColumns,
    Examples,
    HeadSpec,
    Labels,
    NoAnswer,
    Record,
    Records,
    Scores,
    WrongRow,
    as_number,
    excerpt,
)
from model.benchmarks.readers.examples import ChoiceExample, TextExample
from model.benchmarks.readers.row_errors import MalformedRow, RowErrors
from model.benchmarks.readers.row_reader import RowReader, text_of
from model.benchmarks.readers.rows import Row, Table
from model.benchmarks.requests import Fields, as_text, describe
from model.benchmarks.scoring.metrics import CORRELATIONS, label_scores, moments
from model.benchmarks.sources import train_source
from model.common.errors import UserError

_TEXT_COLUMNS: CustomColumns = {
    "first": ("first", "text"),
    "second": ("second", None),
    "label": ("label", "label"),
    "id": ("identity", "id"),
}


class TextReader(RowReader):
    """Reads sentences and pairs with a class."""

    def _columns(self) -> tuple[list[str], list[str]]:
        return [self.row.first] + ([self.row.second] if self.row.second else []), []

    def _example(self, row: Row) -> TextExample:
        first = self.text(row, self.row.first)
        second = self.text(row, self.row.second) if self.row.second else None
        label = self._label(row)
        return TextExample(self.id_of(row), first, second, label)

    def _label(self, row: Row) -> int | float | None:
        return self.labels.index(row)


class ScoreReader(TextReader):
    """Reads sentences and pairs with a score."""

    def _label(self, row: Row) -> int | float | None:
        return self.labels.score(row)


class ChoiceReader(RowReader):
    """Reads contexts with endings; the column of a common beginning, if there is one, is put before each ending."""

    def _columns(self) -> tuple[list[str], list[str]]:
        return [self.row.first, *([self.row.second] if self.row.second else []), *self.row.endings], []

    def _example(self, row: Row) -> ChoiceExample:
        context = self.text(row, self.row.first)
        start = text_of(row[1][self.at[self.row.second]], self.row.second) if self.row.second else ""
        endings = tuple(f"{start} {ending}".strip() for ending in self._endings(row))
        if not all(endings):
            self.errors.note(self.table.path, row[0], "rows with an empty ending")
        label = self.labels.index(row)
        return ChoiceExample(self.id_of(row), context, endings, label)

    def _endings(self, row: Row) -> list[str]:
        fields = [(name, row[1][self.at[name]]) for name in self.row.endings]
        if len(fields) == 1:
            name, value = fields[0]
            if not isinstance(value, list):
                raise MalformedRow(f"expected a list of endings in column {name!r}, found {type(value).__name__}")
            fields = [(name, ending) for ending in value]
        if len(fields) != len(self.row.labels):
            raise MalformedRow(f"{len(fields)} endings where {len(self.row.labels)} were expected")
        return [text_of(value, name) for name, value in fields]


class ClassesSpec(HeadSpec):
    """One of several labels for a sentence or a pair."""

    name = "classes"
    implementation = "model.heads.sequence_classification:ClassesHead"
    reader: type[RowReader] = TextReader
    custom_columns = _TEXT_COLUMNS
    metrics: tuple[str, ...] = ("accuracy",)
    all_metrics: tuple[str, ...] = ("accuracy", "f1", "macro_f1", "matthews")
    paper_benchmark = "sst2"
    dtype: type[np.generic] = np.int64
    """Type of the labels and the predictions."""

    def resolve_custom(self, row: Benchmark, labels: Labels, metrics_given: bool) -> tuple[Labels, Labels]:
        if "f1" in row.metrics and not row.positive:
            raise UserError("f1 is that of one label: name it with `positive` (macro_f1 is the mean over all)")
        return labels, row.metrics

    def parse_prediction(self, row: Benchmark, where: str, value: Any, example: Any) -> Any:
        label = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if label not in row.labels:
            raise UserError(f"{where}: unknown label {value!r}; expected one of {', '.join(row.labels)}")
        return row.labels.index(label)

    def score(self, row: Benchmark, examples: Examples, predictions: Sequence[Any], no_answer: NoAnswer) -> Scores:
        return {"scores": self.scores(row, gold_labels(examples, self.dtype), np.array(predictions, dtype=self.dtype))}

    def scores(self, row: Benchmark, gold: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> dict[str, float]:
        """The benchmark's metrics, 0 to 100, of label numbers, (rows,) each."""
        positive = None if row.positive is None else row.labels.index(row.positive)
        return label_scores(row.metrics, gold, predicted, len(row.labels), positive)

    def row_counts(self, row: Benchmark, metric: str, records: Records) -> Any:
        if metric in ("matthews", "macro_f1"):  # one-hot confusion matrices
            number = {label: index for index, label in enumerate(row.labels)}
            indices = [number[record["label"]] * len(number) + number[record["prediction"]] for record in records]
            return np.eye(len(number) ** 2)[indices]
        if metric == "f1":
            found = [(record["label"] == row.positive, record["prediction"] == row.positive) for record in records]
            return [[gold and predicted, predicted, gold] for gold, predicted in found]
        return [[record["label"] == record["prediction"]] for record in records]

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

    def example(self, row: Benchmark, fields: Fields) -> Any:
        texts = fields.texts(("text", "text_pair") if row.second else ("text",))
        return TextExample(fields.example_id, texts[0], texts[1] if len(texts) > 1 else None, None)


class RegressionSpec(ClassesSpec):
    """A score for a sentence or a pair."""

    name = "regression"
    implementation = "model.heads.sequence_classification:RegressionHead"
    reader = ScoreReader
    dtype = np.float64
    metrics = ("spearman", "pearson")
    all_metrics = metrics
    paper_benchmark = "stsb"
    ranked_by = "distance"
    has_labels = False
    counts_wrong_rows = False

    def num_outputs(self, row: Benchmark) -> int:
        return 1

    def parse_prediction(self, row: Benchmark, where: str, value: Any, example: Any) -> Any:
        return as_number(where, value)

    def scores(self, row: Benchmark, gold: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> dict[str, float]:
        """The benchmark's metrics, 0 to 100, of scores, (rows,) each."""
        return {name: CORRELATIONS[name](gold.astype(np.float64), predicted) for name in row.metrics}

    def row_counts(self, row: Benchmark, metric: str, records: Records) -> Any:
        middle = float(np.mean([record["label"] for record in records]))
        return moments(*(np.array([record[key] for record in records]) - middle for key in ("label", "prediction")))

    def wrong_row(self, row: Benchmark, example: Any, record: Record) -> WrongRow | None:
        return abs(float(record["prediction"]) - float(record["label"])), {
            "texts": self._shown(row, example),
            "prediction": f"{record['prediction']:.2f}",
            "label": f"{record['label']:.2f}",
        }


class ChoiceSpec(ClassesSpec):
    """The right one of several endings of a context."""

    name = "choice"
    implementation = "model.heads.sequence_classification:ChoiceHead"
    reader = ChoiceReader
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

    def find_labels(self, row: Benchmark, data_dir: Path) -> tuple[str, ...]:
        return tuple(str(number) for number in range(_num_endings(row, data_dir)))

    def resolve_custom(self, row: Benchmark, labels: Labels, metrics_given: bool) -> tuple[Labels, Labels]:
        if len(row.endings) not in (1, len(labels)):
            raise UserError(f"labels: {len(labels)} of them for {len(row.endings)} columns of endings")
        return labels, row.metrics

    def _shown(self, row: Benchmark, example: Any) -> list[list[str]]:
        endings = [[label, excerpt(ending)] for label, ending in zip(row.labels, example.endings)]
        return [["context", excerpt(example.context)], *endings]

    def request_columns(self, row: Benchmark) -> tuple[str, ...]:
        return (*super().request_columns(row), *row.endings)

    def in_columns(self, row: Benchmark, fields: list[str]) -> Any:
        return dict(zip(self.request_columns(row), fields))

    def example(self, row: Benchmark, fields: Fields) -> Any:
        given, start = fields.given, ""
        if fields.by_name is not None and fields.has_columns:
            start = fields.text(row.second) if row.second else ""
            columns = [fields.by_name[name] for name in row.endings]
            given = (fields.by_name[row.first], columns[0] if len(columns) == 1 else columns)
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
        return ChoiceExample(fields.example_id, context, tuple(endings), None)


def gold_labels(examples: Sequence[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """The labels of text or choice examples, (rows,); -1 for unlabeled rows."""
    return np.array([-1 if example.label is None else example.label for example in examples], dtype=dtype)


def _num_endings(row: Benchmark, data_dir: Path) -> int:
    if len(row.endings) > 1:
        return len(row.endings)
    source = train_source(row, data_dir)
    table = Table(source.paths[0], list(row.endings), ending=source.ending)
    column = table.column(row.endings[0])
    assert column is not None
    for _, fields in table.rows(RowErrors(skips=True)):
        if isinstance(fields[column], list) and len(fields[column]) > 1:
            return len(fields[column])
    raise UserError(f"{source.paths[0]}: no row has a list of two or more endings in column {row.endings[0]!r}")
