"""Reads the splits (train, dev, test) of a benchmark into examples, whatever the format of the files."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.readers.examples import Example, Split
from model.benchmarks.readers.rows import RowErrors
from model.benchmarks.sources import SourceFiles, split_sources, train_source
from model.benchmarks.table import Benchmark
from model.common.errors import UserError

_MAX_SKIPPED = 0.1  # with more malformed rows, it is probably the wrong file


def read_train(benchmark: Benchmark, data_dir: Path) -> Split:
    """The training split. Malformed rows are skipped, counted and listed if the benchmark allows it.

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
    """The dev splits by suffix; only the first file is required.

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
    """The test splits by suffix; labels are None (tags and answers empty) if the file has none.

    A file whose suffix no dev file has is optional: MNLI's `diagnostic`.

    Raises:
        UserError: as `read_train`.
    """
    return {
        suffix: _read(source, labeled=False)
        for suffix, source in split_sources(benchmark, data_dir, "test").items()
        if source.exists or suffix in benchmark.dev
    }


def _read_all_training(benchmark: Benchmark, data_dir: Path) -> Split:
    part = _read(train_source(benchmark, data_dir), labeled=True, training=True)
    num_rows = len(part.examples) + part.num_skipped
    if part.num_skipped > _MAX_SKIPPED * num_rows:
        raise UserError(
            f"{part.path}: {part.num_skipped} of {num_rows} rows are malformed; is it the right file? "
            f"The first: {part.skipped[0]}"
        )
    return part


def _read(source: SourceFiles, labeled: bool, training: bool = False) -> Split:
    row, spec = source.row, HEAD_SPECS[source.row.head]
    errors = RowErrors(skips=training and (row.skips_malformed or spec.skips_malformed_training_rows))
    examples = spec.read(source, errors, labeled)
    return Split(source.paths[0], examples, errors.num_skipped, errors.skipped, errors.remarks, source.name)


def _cut(split: Split, dev_share: float, dev: bool) -> Split:
    """The dev rows of a training split, or the others.

    A hash of the row's own text decides, so that equal texts (questions about one context) are on the same side, and
    rows that are added later move no other row.
    """

    def is_dev(example: Example) -> bool:
        digest = hashlib.blake2b(example.grouping_text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < dev_share * 2.0**64

    return replace(split, examples=[example for example in split.examples if is_dev(example) == dev])
