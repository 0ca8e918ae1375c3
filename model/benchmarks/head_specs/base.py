"""The interface between the rows of a benchmark and its head.

A `HeadSpec` implements the parts of a head that need no model: it reads rows, validates the columns, labels and metrics
of custom tasks, parses and scores predictions, lists wrong rows, and converts user input to examples. It does not
import torch, so scoring a file or reading parameters is quick. The class with the layers, a `model.heads.head.Head`,
is loaded from `implementation` on demand.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from model.benchmarks.readers.examples import Example, Split
from model.benchmarks.readers.row_reader import RowReader, label_speller
from model.benchmarks.readers.rows import Row, RowErrors, read_table
from model.benchmarks.requests import Fields, Request
from model.benchmarks.scoring.metrics import SUM_FORMULAS, Formula, mean_percent
from model.benchmarks.sources import SourceFiles, train_source
from model.benchmarks.table import Benchmark
from model.common.errors import UserError, shown
from model.config.finetuning import FinetuneRecipe

Record = Mapping[str, Any]
"""A line of predictions.jsonl."""
Examples = Sequence[Any]
Scores = dict[str, Any]
WrongRow = tuple[float, dict[str, Any]]
"""Rank of a wrong prediction (highest first) and its entry in errors.json."""
PredictionItems = list[tuple[str, Any]]
"""Each prediction with its location in the file."""

FieldType = Literal["string", "strings", "number", "numbers", "any"]
"""Type of a field of a request or response: a text, a list of texts, a number, numbers by label, or anything."""

MAX_CHARACTERS = 320  # maximum length of a text in errors.json; cuts are marked
_CHARACTERS_BEFORE = 120  # context kept before the answer
_MAX_LABELS = 1000  # with more, the column holds numbers or is the wrong one
_FEW_LABELS = 20  # with more, each must occur in two rows on average


class ClassCounts(NamedTuple):
    """How often each class was predicted and right."""

    names: list[str]
    counts: list[tuple[int, int, int]]
    """Rows (or entities) of each class that were right, that were predicted, and that are in the data."""
    confusion: list[list[int]] | None = None
    """Rows by label, then by prediction; None if the units are entities."""


class NoAnswer(NamedTuple):
    """Options for benchmarks with unanswerable questions."""

    probs: Mapping[str, float] | None = None
    """Probability or odds that a question has no answer, by id."""
    threshold: float | None = None
    """Questions with a higher value count as unanswered."""


class HeadSpec(ABC):
    """The data side of one head."""

    implementation: str
    """The `Head`, as "module:class"."""
    custom_columns: dict[str, tuple[str, str | None]]
    """Key under `columns` in a custom task's YAML → (field of Benchmark, default column or None for no column)."""
    metrics: tuple[str, ...]
    """Default metrics of a custom task."""
    all_metrics: tuple[str, ...]
    """Metrics that a custom task may name."""
    paper_benchmark: str
    """Benchmark of the BERT paper whose hyper-parameters are the defaults of a custom task."""
    noun = "label"
    """Word for a label in messages."""
    ranked_by: str = "confidence"
    """Name of the value by which errors.json is sorted."""
    has_labels = True
    """True if the head chooses among a fixed set of labels."""
    counts_wrong_rows = True
    """True if a row is either right or wrong."""
    skips_malformed_training_rows = False
    """Skip malformed training rows even if the benchmark does not request it."""
    relative_cost = 1
    """Training time per byte of text, relative to the other heads."""

    def sequences_per_row(self, row: Benchmark) -> int:
        """Return the number of sequences per row."""
        return 1

    def num_outputs(self, row: Benchmark) -> int:
        """Return the number of outputs per sequence, or per token for heads that read tokens."""
        return len(row.labels)

    # Reading

    def read(self, source: SourceFiles, errors: RowErrors, labeled: bool) -> Examples:
        """Read the examples of one split. Raises UserError if a file is missing or malformed."""
        return RowReader(source, errors, labeled, self.read_row, self.noun).examples

    @abstractmethod
    def read_row(self, reader: RowReader, row: Row) -> Example:
        """Convert a row of a file with columns to an example. Raises MalformedRow if the row is unusable."""

    def check_files(self, row: Benchmark, data_dir: Path, recipe: FinetuneRecipe) -> None:  # noqa: B027, optional
        """Check that the training and dev files have what the recipe needs. Raises UserError if they do not."""

    # Custom tasks

    def find_labels(self, row: Benchmark, data_dir: Path) -> tuple[str, ...]:
        """Collect the labels in the training rows of a custom task: numbers by value, words alphabetically.

        Raises:
            UserError: the file cannot be read, or it has so few or so many labels that the column must be wrong.
        """
        source = train_source(row, data_dir)
        path, errors = source.paths[0], RowErrors(skips=True)
        found = self._count_labels(source, errors)
        labels = set(found) - {""}
        if len(labels) < 2:
            what = f"only the label {shown(labels.pop())}" if labels else "no labels"
            why = f"; {errors.skipped[0]}" if errors.skipped else ""
            raise UserError(f"{path}: {what} in column {row.label!r}; expected two or more{why}")
        if len(labels) > _MAX_LABELS or (len(labels) > _FEW_LABELS and 2 * len(labels) > found.total()):
            raise UserError(
                f"{path}: {len(labels):,} different labels in {found.total():,} rows of column {row.label!r} "
                f"({', '.join(sorted(labels)[:3])}, ...); is it the right column? Numbers are for `head: regression`"
            )
        numeric = all(label.removeprefix("-").isdecimal() and len(label) < 20 for label in labels)
        return tuple(sorted(labels, key=int if numeric else None))

    def _count_labels(self, source: SourceFiles, errors: RowErrors) -> Counter[str]:
        spell = label_speller(source.row)
        found: Counter[str] = Counter()
        for path in source.paths:
            header, rows = read_table(path, source.ending, errors, [source.row.label], columns=source.row.columns)
            column = header.index(source.row.label)
            found.update(spell(fields[column]) for _, fields in rows)
        return found

    def complete_custom(self, row: Benchmark, default_metrics: bool) -> Benchmark:
        """Validate the benchmark of a custom task by the rules of this head, and return it.

        With `default_metrics`, the YAML file names no metrics.

        Raises:
            UserError: labels and metrics do not fit the head; the message does not name the file.
        """
        return row

    # Predictions

    def predictions_in_lines(self, row: Benchmark, path: Path, gold: Split, lines: list[str]) -> PredictionItems | None:
        """Parse the head's text format for predictions; returns None if each line is one prediction."""
        return None

    def may_omit_predictions(self, row: Benchmark) -> bool:
        """Check whether rows without a prediction score 0 instead of raising an error."""
        return False

    @abstractmethod
    def parse_prediction(self, row: Benchmark, where: str, value: Any, example: Any) -> Any:
        """Parse a prediction into the form that `score` expects.

        Raises UserError, whose message begins with `where`, if it is not a possible prediction.
        """

    @abstractmethod
    def score(self, row: Benchmark, examples: Examples, predictions: Sequence[Any], no_answer: NoAnswer) -> Scores:
        """Score parsed predictions: {"scores": {metric: 0 to 100}} and the head's additional reports."""

    @abstractmethod
    def wrong_row(self, row: Benchmark, example: Any, record: Record) -> WrongRow | None:
        """Build the errors.json entry of a prediction; None if the prediction is right."""

    def class_counts(self, row: Benchmark, records: Sequence[Record]) -> ClassCounts | None:
        """Count right and wrong predictions by class; None if the head predicts no classes."""
        return None

    @abstractmethod
    def row_counts(self, row: Benchmark, metric: str, records: Sequence[Record]) -> Any:
        """Compute each row's contribution to the sums that `formula` reads, (rows, counts)."""

    def formula(self, metric: str) -> Formula:
        """Return the metric as a function of summed `row_counts`, for significance tests."""
        return SUM_FORMULAS.get(metric, mean_percent)

    # Requests

    def request_columns(self, row: Benchmark) -> tuple[str, ...]:
        """Return the names of a request's texts, as in the benchmark's files."""
        return (row.first, row.second) if row.second else (row.first,)

    def request_types(self, row: Benchmark) -> dict[str, FieldType]:
        """Return the fields of a request with their types."""
        return dict.fromkeys(self.request_columns(row), "string")

    @abstractmethod
    def response_types(self) -> dict[str, FieldType]:
        """Return the fields of a response with their types."""

    @abstractmethod
    def request(self, row: Benchmark, fields: Fields) -> Request:
        """Convert a user's input to a request. Raises UserError if a field is missing or is not text."""


def as_number(where: str, value: Any) -> float:
    """Convert `value` to a finite number. Raises UserError, whose message begins with `where`, if it is not one."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(number := float(value)):
            return number
    raise UserError(f"{where}: expected a number, got {shown(value)}")


def excerpt(text: str, start: int = 0) -> str:
    """Shorten `text` to 320 characters around the character `start`, with an ellipsis at each cut."""
    text = text.replace("\n", " ")
    begin = max(0, min(start - _CHARACTERS_BEFORE, len(text) - MAX_CHARACTERS))
    end = begin + MAX_CHARACTERS
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"
