"""The interface between the rows of a benchmark and its head.

A `HeadSpec` knows everything about a head that needs no model: how its rows are read, which columns, labels and metrics
a custom task may name, how predictions are parsed and scored, how wrong rows are shown, and how a user's input becomes
an example. It imports no torch, so that scoring a file or reading parameters is quick. The model side of the same
head, a `model.heads.head.Head`, is loaded from `implementation` when it is needed.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from model.benchmarks.readers.examples import Example, Split
from model.benchmarks.readers.row_reader import RowReader, label_speller
from model.benchmarks.readers.rows import Row, RowErrors, read_table
from model.benchmarks.requests import Fields, Request
from model.benchmarks.scoring.metrics import SUM_FORMULAS, Formula, mean_percent
from model.benchmarks.sources import SourceFiles, train_source
from model.benchmarks.table import Benchmark
from model.common.errors import UserError

Record = Mapping[str, Any]
"""A line of predictions.jsonl."""
Examples = Sequence[Any]
Scores = dict[str, Any]
WrongRow = tuple[float, dict[str, Any]]
"""Rank of a wrong prediction (the highest first), and its entry in errors.json."""
PredictionItems = list[tuple[str, Any]]
"""Where each prediction is in its file, and the prediction."""

MAX_CHARACTERS = 320  # of a text in errors.json; cuts are marked
_CHARACTERS_BEFORE = 120  # of a context that are kept before the answer
_MAX_LABELS = 1000  # more are no classes: a number, or the wrong column
_FEW_LABELS = 20  # if there are more, each is expected to occur in two rows on average


class NoAnswer(NamedTuple):
    """Options for benchmarks with unanswerable questions."""

    probs: Mapping[str, float] | None = None
    """Probability or odds that a question has no answer, by id."""
    threshold: float | None = None
    """Questions above it count as unanswered."""


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
    """The word for a label in messages."""
    ranked_by: str = "confidence"
    """The value that ranks the rows of errors.json."""
    has_labels = True
    """The head chooses among a fixed set of labels."""
    counts_wrong_rows = True
    """A row is either right or wrong."""
    skips_malformed_training_rows = False
    """Malformed training rows are skipped even if the benchmark does not say so."""
    relative_cost = 1
    """Training time per byte of text, relative to the other heads."""

    def sequences_per_row(self, row: Benchmark) -> int:
        """Number of sequences that the encoder reads for one row."""
        return 1

    def num_outputs(self, row: Benchmark) -> int:
        """Width of the head's output: per sequence, or per token for heads that read tokens."""
        return len(row.labels)

    # Reading

    def read(self, source: SourceFiles, errors: RowErrors, labeled: bool) -> Examples:
        """The examples of one split. Raises UserError if a file is missing or malformed."""
        return RowReader(source, errors, labeled, self.read_row, self.noun).examples

    @abstractmethod
    def read_row(self, reader: RowReader, row: Row) -> Example:
        """The example of a row of a file with columns. Raises MalformedRow if the row is unusable."""

    # Custom tasks

    def find_labels(self, row: Benchmark, data_dir: Path) -> tuple[str, ...]:
        """The labels in the training rows of a custom task: numbers by value, words alphabetically.

        Raises:
            UserError: the file cannot be read, or it has one label or so many that the column must be wrong.
        """
        source = train_source(row, data_dir)
        path, errors = source.paths[0], RowErrors(skips=True)
        found = self._count_labels(source, errors)
        labels = set(found) - {""}
        if len(labels) < 2:
            shown = f"only the label {labels.pop()!r}" if labels else "no labels"
            why = f"; {errors.skipped[0]}" if errors.skipped else ""
            raise UserError(f"{path}: {shown} in column {row.label!r}; expected two or more{why}")
        if len(labels) > _MAX_LABELS or (len(labels) > _FEW_LABELS and 2 * len(labels) > found.total()):
            raise UserError(
                f"{path}: {len(labels):,} different labels in {found.total():,} rows of column {row.label!r} "
                f"({', '.join(sorted(labels)[:3])}, ...); is it the right column? Numbers are for `head: regression`"
            )
        numeric = all(label.removeprefix("-").isdecimal() for label in labels)
        return tuple(sorted(labels, key=int if numeric else None))

    def _count_labels(self, source: SourceFiles, errors: RowErrors) -> Counter[str]:
        spell = label_speller(source.row)
        found: Counter[str] = Counter()
        for path in source.paths:
            header, rows = read_table(path, source.ending, errors, [source.row.label])
            column = header.index(source.row.label)
            found.update(spell(fields[column]) for _, fields in rows)
        return found

    def complete_custom(self, row: Benchmark, default_metrics: bool) -> Benchmark:
        """The benchmark of a custom task, checked beyond what all heads check.

        With `default_metrics`, the YAML file names no metrics.

        Raises:
            UserError: labels and metrics do not fit the head; the message does not name the file.
        """
        return row

    # Predictions

    def predictions_in_lines(self, row: Benchmark, path: Path, gold: Split, lines: list[str]) -> PredictionItems | None:
        """Predictions in a text format of this head, or None if `lines` hold one prediction each."""
        return None

    def may_omit_predictions(self, row: Benchmark) -> bool:
        """Whether rows without a prediction score 0 instead of being an error."""
        return False

    @abstractmethod
    def parse_prediction(self, row: Benchmark, where: str, value: Any, example: Any) -> Any:
        """A prediction in the form that `score` expects.

        Raises UserError, whose message begins with `where`, if it is not a possible prediction.
        """

    @abstractmethod
    def score(self, row: Benchmark, examples: Examples, predictions: Sequence[Any], no_answer: NoAnswer) -> Scores:
        """{"scores": {metric: 0 to 100}} of parsed predictions, and further reports of the head."""

    @abstractmethod
    def wrong_row(self, row: Benchmark, example: Any, record: Record) -> WrongRow | None:
        """The entry of a prediction in errors.json, or None if the prediction is right."""

    @abstractmethod
    def row_counts(self, row: Benchmark, metric: str, records: Sequence[Record]) -> Any:
        """Contribution of each row to the sums that `formula` reads, (rows, counts)."""

    def formula(self, metric: str) -> Formula:
        """The metric as a function of summed `row_counts`, for significance tests."""
        return SUM_FORMULAS.get(metric, mean_percent)

    # Requests

    def request_columns(self, row: Benchmark) -> tuple[str, ...]:
        """Names of the texts that a request consists of, as the benchmark's files call them."""
        return (row.first, row.second) if row.second else (row.first,)

    @abstractmethod
    def request(self, row: Benchmark, fields: Fields) -> Request:
        """The request for a user's input. Raises UserError if a field is missing or is not text."""


def as_number(where: str, value: Any) -> float:
    """`value` as a finite number. Raises UserError, whose message begins with `where`, if it is not one."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(number := float(value)):
            return number
    raise UserError(f"{where}: expected a number, got {value!r}")


def excerpt(text: str, start: int = 0) -> str:
    """`text` cut to 320 characters around the character `start`, with an ellipsis at each cut."""
    text = text.replace("\n", " ")
    begin = max(0, min(start - _CHARACTERS_BEFORE, len(text) - MAX_CHARACTERS))
    end = begin + MAX_CHARACTERS
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"
