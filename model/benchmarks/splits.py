"""Reads the splits (train, dev, test) of a benchmark into examples, from files in any format."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.readers.examples import Example, Split
from model.benchmarks.readers.rows import RowErrors
from model.benchmarks.sources import SourceFiles, split_sources, train_source
from model.benchmarks.table import Benchmark
from model.common.errors import UserError

_MAX_SKIPPED = 0.1  # a file with more malformed rows is probably the wrong one


def read_train(benchmark: Benchmark, data_dir: Path) -> Split:
    """Read the training split. Malformed rows are skipped, counted and listed if the benchmark allows it.

    Raises:
        UserError: a file is missing, or a row has a wrong number of columns or an unknown label.
    """
    part = _read_all_training(benchmark, data_dir)
    if benchmark.dev_share is not None:
        part = _cut(part, benchmark.dev_share, dev=False)
    if not part.examples:
        raise UserError(f"{part.path}: no rows to train on")
    return part


def read_dev(benchmark: Benchmark, data_dir: Path) -> dict[str, Split]:
    """Read the dev splits by suffix; only the first file is required.

    Raises:
        UserError: as `read_train`, or a row has no label.
    """
    if benchmark.dev_share is not None and list(benchmark.dev.values()) == [benchmark.train]:
        parts = {"": _cut(_read_all_training(benchmark, data_dir), benchmark.dev_share, dev=True)}
    else:
        sources = split_sources(benchmark, data_dir, "dev")
        first = next(iter(sources))
        parts = {
            suffix: _read(source, labeled=True)
            for suffix, source in sources.items()
            if source.exists or suffix == first
        }
    for part in parts.values():
        if not part.examples:
            raise UserError(f"{part.path}: no rows to evaluate on")
    return parts


def read_test(benchmark: Benchmark, data_dir: Path) -> dict[str, Split]:
    """Read the test splits by suffix; labels are None (tags and answers empty) if the file has none.

    Files without a dev file of the same suffix, such as MNLI's `diagnostic`, are optional.

    Raises:
        UserError: as `read_train`.
    """
    return {
        suffix: _read(source, labeled=False)
        for suffix, source in split_sources(benchmark, data_dir, "test").items()
        if source.exists or suffix in benchmark.dev
    }


def split_for_selection(examples: Sequence[Example], judge_share: float) -> tuple[list[Example], list[Example]]:
    """Divide dev rows into those that select (recipe, epoch, threshold) and those that are reported.

    Rows with equal texts stay together, and the choice of one row does not depend on the others.
    """
    halves: tuple[list[Example], list[Example]] = ([], [])
    for example in examples:
        halves[_place(example, "judge") < judge_share].append(example)
    return halves


def _read_all_training(benchmark: Benchmark, data_dir: Path) -> Split:
    part = _read(train_source(benchmark, data_dir), labeled=True, training=True)
    num_rows = len(part.examples) + part.num_skipped
    if part.num_skipped > _MAX_SKIPPED * num_rows:
        raise UserError(
            f"{part.path}: {part.num_skipped} of {num_rows} rows are malformed; check that it is the right file. "
            f"First row: {part.skipped[0]}"
        )
    return part


def _read(source: SourceFiles, labeled: bool, training: bool = False) -> Split:
    row, spec = source.row, HEAD_SPECS[source.row.head]
    errors = RowErrors(skips=training and (row.skips_malformed or spec.skips_malformed_training_rows))
    examples = spec.read(source, errors, labeled)
    return Split(source.paths[0], examples, errors.num_skipped, errors.skipped, errors.remarks, source.name)


def _cut(split: Split, dev_share: float, dev: bool) -> Split:
    """Return the dev rows of a training split, or the other rows.

    Rows are assigned by a hash of their text, so rows with equal texts (questions about one context) stay together, and
    adding rows does not move others.
    """
    return replace(split, examples=[one for one in split.examples if (_place(one) < dev_share) == dev])


def _place(example: Example, purpose: str = "") -> float:
    """Return a number in [0, 1) from the hash of an example's text; each purpose has independent numbers."""
    digest = hashlib.blake2b(example.grouping_text.encode(), digest_size=8, person=purpose.encode()).digest()
    return int.from_bytes(digest, "big") / 2.0**64
