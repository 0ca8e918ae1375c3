"""Reads one part (train, dev, test) of a benchmark into examples, whatever its file format."""

from __future__ import annotations

import math
from pathlib import Path

from model.benchmarks import conll, squad_files
from model.benchmarks.examples import ChoiceExample, Part, TextExample
from model.benchmarks.rows import Row, Table, csv_rows, tsv_rows
from model.benchmarks.table import Benchmark
from model.errors import UserError

_MAX_SKIPPED = 0.1  # a file of which more is malformed is not the file that was meant


def read_train(benchmark: Benchmark, data_dir: Path) -> Part:
    """The training part. Malformed rows are skipped and counted where the table says so.

    Raises:
        UserError: a missing file, a wrong column count, an unknown label; the message names file and row.
    """
    part = _read(benchmark, data_dir / benchmark.train, skip_malformed=True, labelled=True)
    if not part.examples:
        raise UserError(f"{part.path}: no rows to train on")
    if part.num_skipped > _MAX_SKIPPED * (len(part.examples) + part.num_skipped):
        num_rows = len(part.examples) + part.num_skipped
        raise UserError(f"{part.path}: {part.num_skipped} of {num_rows} rows are malformed; is it the right file?")
    return part


def read_dev(benchmark: Benchmark, data_dir: Path) -> dict[str, Part]:
    """The development parts by suffix; all but the first may lack.

    Raises:
        UserError: as `read_train`, and for a row without a label.
    """
    parts: dict[str, Part] = {}
    for suffix, name in benchmark.dev.items():
        path = data_dir / name
        if parts and not path.exists():
            continue
        parts[suffix] = _read(benchmark, path, skip_malformed=False, labelled=True)
        if not parts[suffix].examples:
            raise UserError(f"{path}: no rows to evaluate on")
    return parts


def read_test(benchmark: Benchmark, data_dir: Path) -> dict[str, Part]:
    """The test parts by suffix; labels are None where the file has none.

    Raises:
        UserError: as `read_train`.
    """
    return {
        suffix: _read(benchmark, data_dir / name, skip_malformed=False, labelled=False)
        for suffix, name in benchmark.test.items()
    }


def _read(benchmark: Benchmark, path: Path, skip_malformed: bool, labelled: bool) -> Part:
    if benchmark.format == "squad":
        return squad_files.read(path, benchmark.unanswerable, skip_malformed)
    if benchmark.format == "conll":
        return conll.read(path, benchmark.labels)
    if benchmark.head == "choice":
        return _read_choices(benchmark, path, labelled)
    return _read_texts(benchmark, path, skip_malformed, labelled)


def _read_texts(benchmark: Benchmark, path: Path, skip_malformed: bool, labelled: bool) -> Part:
    needed = [benchmark.first] + ([benchmark.second] if benchmark.second else [])
    table = Table(path, tsv_rows(path), needed + [benchmark.label] * labelled, benchmark.columns)
    first, second = table.column(benchmark.first), table.column(benchmark.second)
    identity, label = table.column(benchmark.identity), table.column(benchmark.label)
    assert first is not None
    labels = _Labels(benchmark, path, label)
    examples: list[TextExample] = []
    num_skipped = 0
    for row in table.rows(skip_malformed and benchmark.skips_malformed):
        if row is None or (skip_malformed and labels.is_unlabelled(row)):
            num_skipped += 1
            continue
        fields = row[1]
        examples.append(
            TextExample(
                id=str(len(examples)) if identity is None else fields[identity],
                first=fields[first],
                second=None if second is None else fields[second],
                label=labels.of(row),
            )
        )
    labels.check()
    return Part(path, examples, num_skipped)


def _read_choices(benchmark: Benchmark, path: Path, labelled: bool) -> Part:
    ending_names = [f"ending{number}" for number in benchmark.labels]
    needed = [benchmark.first, str(benchmark.second), *ending_names] + [benchmark.label] * labelled
    table = Table(path, csv_rows(path), needed)
    context, start = table.column(benchmark.first), table.column(benchmark.second)
    identity, label = table.column(benchmark.identity), table.column(benchmark.label)
    endings = [table.header.index(name) for name in ending_names]
    assert context is not None and start is not None
    labels = _Labels(benchmark, path, label)
    examples: list[ChoiceExample] = []
    for row in table.rows():
        assert row is not None
        fields = row[1]
        examples.append(
            ChoiceExample(
                id=str(len(examples)) if identity is None else fields[identity],
                context=fields[context],
                endings=tuple(f"{fields[start]} {fields[ending]}".strip() for ending in endings),
                label=labels.index_of(row),
            )
        )
    labels.check()
    return Part(path, examples)


class _Labels:
    """Turns a label field into the head's index or score, and remembers labels that the table does not
    know."""

    def __init__(self, benchmark: Benchmark, path: Path, column: int | None) -> None:
        self._benchmark = benchmark
        self._path = path
        self._column = column
        self._index = {label: number for number, label in enumerate(benchmark.labels)}
        self._found: set[str] = set()
        self._unknown: tuple[int, str] | None = None

    def is_unlabelled(self, row: Row) -> bool:
        return (
            self._column is not None
            and self._benchmark.unlabelled is not None
            and row[1][self._column] == self._benchmark.unlabelled
        )

    def of(self, row: Row) -> int | float | None:
        return self._score_of(row) if self._benchmark.head == "regression" else self.index_of(row)

    def index_of(self, row: Row) -> int | None:
        if self._column is None:
            return None
        label = row[1][self._column]
        self._found.add(label)
        if label not in self._index and self._unknown is None:
            self._unknown = (row[0], label)
        return self._index.get(label)

    def check(self) -> None:
        """Refuse the file when a label was unknown, naming those that were found."""
        if self._unknown is None:
            return
        number, label = self._unknown
        found = sorted(self._found)
        more = f" and {len(found) - 10} more" if len(found) > 10 else ""
        raise UserError(
            f"{self._path}: row {number}: {f'unknown label {label!r}' if label else 'no label'}; "
            f"expected {', '.join(self._benchmark.labels)}; labels found: "
            f"{', '.join(repr(label) for label in found[:10])}{more}"
        )

    def _score_of(self, row: Row) -> float | None:
        if self._column is None:
            return None
        field = row[1][self._column]
        try:
            score = float(field)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise UserError(
                f"{self._path}: row {row[0]}: expected a number in column {self._benchmark.label!r}, got {field!r}"
            )
        return score
