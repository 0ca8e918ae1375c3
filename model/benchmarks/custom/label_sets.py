"""The labels of an own task, where its file does not give them: those of the training rows, in a fixed order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.readers.labels import Spelling, in_order
from model.benchmarks.readers.row_faults import Faults
from model.benchmarks.readers.rows import Table
from model.benchmarks.readers.tag_rows import LINE_ENDINGS, TagReader, read_lines
from model.benchmarks.sources import Source, train_source
from model.common.errors import UserError

_MAX_LABELS = 1000  # more are no classes: a number, or the wrong column
_FEW_LABELS = 20  # of more, a label is expected to stand in two rows at least


def found_labels(row: Benchmark, data_dir: Path) -> tuple[str, ...]:
    """The labels in the training rows: numbers by size, words by letter; for choice a number for each ending.

    Raises:
        UserError: the file cannot be read, or holds one label or so many that it cannot be meant.
    """
    if row.head == "choice":
        return tuple(str(number) for number in range(_num_endings(row, data_dir)))
    source = train_source(row, data_dir)
    path, faults = source.paths[0], Faults(skips=True)
    found = _tags(row, data_dir, faults) if row.head == "tags" else _classes(source, faults)
    labels = set(found) - {""}
    if len(labels) < 2:
        shown = f"only the label {labels.pop()!r}" if labels else "no labels"
        why = f"; {faults.skipped[0]}" if faults.skipped else ""
        raise UserError(f"{path}: {shown} in column {row.label!r}; expected two or more{why}")
    if len(labels) > _MAX_LABELS or (len(labels) > _FEW_LABELS and 2 * len(labels) > found.total()):
        raise UserError(
            f"{path}: {len(labels):,} different labels in {found.total():,} rows of column {row.label!r} "
            f"({', '.join(sorted(labels)[:3])}, ...); is it the right column? Numbers are for `head: regression`"
        )
    return in_order(labels)


def _tags(row: Benchmark, data_dir: Path, faults: Faults) -> Counter[str]:
    source = train_source(row.model_copy(update={"metrics": ("accuracy",), "labels": ()}), data_dir)
    is_lines = source.ending in LINE_ENDINGS
    examples = read_lines(source, faults) if is_lines else TagReader(source, faults, True, True).examples
    return Counter(tag for example in examples for tag in example.tags)


def _classes(source: Source, faults: Faults) -> Counter[str]:
    spelling = Spelling(source.row)
    found: Counter[str] = Counter()
    for path in source.paths:
        table = Table(path, [source.row.label], ending=source.ending)
        column = table.column(source.row.label)
        assert column is not None
        found.update(spelling.of(fields[column]) for _, fields in table.rows(faults))
    return found


def whole_entities(labels: Iterable[str]) -> tuple[tuple[str, ...], bool]:
    """Tags, and whether they mark entities. Then there are B- and I- of every kind, since the data is brought to IOB2,
    where each entity begins with B-."""
    labels = tuple(labels)
    if not all(label == "O" or (label[:2] in ("B-", "I-") and len(label) > 2) for label in labels):
        return labels, False
    kinds = list(dict.fromkeys(label[2:] for label in labels if label != "O"))
    whole = ("O", *(f"{mark}-{kind}" for kind in kinds for mark in "BI"))
    return (labels if set(whole) == set(labels) else whole), True


def _num_endings(row: Benchmark, data_dir: Path) -> int:
    if len(row.endings) > 1:
        return len(row.endings)
    source = train_source(row, data_dir)
    table = Table(source.paths[0], list(row.endings), ending=source.ending)
    column = table.column(row.endings[0])
    assert column is not None
    for _, fields in table.rows(Faults(skips=True)):
        if isinstance(fields[column], list) and len(fields[column]) > 1:
            return len(fields[column])
    raise UserError(f"{source.paths[0]}: no row has a list of two or more endings in column {row.endings[0]!r}")
