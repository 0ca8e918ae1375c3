"""Reads one part (train, dev, test) of a benchmark into examples, whatever its files' format."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.readers import squad_files
from model.benchmarks.readers.examples import ChoiceExample, Part, SpanExample, TagExample, TextExample
from model.benchmarks.readers.row_faults import Faults
from model.benchmarks.readers.span_rows import SpanReader
from model.benchmarks.readers.tag_rows import LINE_ENDINGS, TagReader, read_lines
from model.benchmarks.readers.text_rows import ChoiceReader, RowReader, TextReader
from model.benchmarks.sources import Source, dev_sources, test_sources, train_source
from model.common.errors import UserError

_MAX_SKIPPED = 0.1  # a file of which more is malformed is not the file that was meant
_TABLES: dict[str, type[RowReader]] = {
    "classes": TextReader,
    "regression": TextReader,
    "choice": ChoiceReader,
    "span": SpanReader,
    "tags": TagReader,
}


def read_train(benchmark: Benchmark, data_dir: Path) -> Part:
    """The training part. Malformed rows are skipped, counted and named where the row says so.

    Raises:
        UserError: a missing file, a wrong column count, an unknown label; the message names file and row.
    """
    part = _read_all_training(benchmark, data_dir)
    if benchmark.dev_share is not None:
        part = _cut(part, benchmark.dev_share, dev=False)
    if not part.examples:
        raise UserError(f"{part.path}: no rows to train on")
    return part


def read_dev(benchmark: Benchmark, data_dir: Path) -> dict[str, Part]:
    """The development parts by suffix; all but the first may lack.

    Raises:
        UserError: as `read_train`, and for a row without a label.
    """
    if benchmark.dev_share is not None and list(benchmark.dev.values()) == [benchmark.train]:
        parts = {"": _cut(_read_all_training(benchmark, data_dir), benchmark.dev_share, dev=True)}
    else:
        sources = dev_sources(benchmark, data_dir)
        first = next(iter(sources))
        parts = {
            suffix: _read(source, training=False, labelled=True)
            for suffix, source in sources.items()
            if source.exists or suffix == first
        }
    for part in parts.values():
        if not part.examples:
            raise UserError(f"{part.path}: no rows to evaluate on")
    return parts


def read_test(benchmark: Benchmark, data_dir: Path) -> dict[str, Part]:
    """The test parts by suffix; labels are None (tags and answers empty) where the file has none.

    A part of a suffix that the dev parts do not have may lack: MNLI's `diagnostic`.

    Raises:
        UserError: as `read_train`.
    """
    return {
        suffix: _read(source, training=False, labelled=False)
        for suffix, source in test_sources(benchmark, data_dir).items()
        if source.exists or suffix in benchmark.dev
    }


def _read_all_training(benchmark: Benchmark, data_dir: Path) -> Part:
    part = _read(train_source(benchmark, data_dir), training=True, labelled=True)
    num_rows = len(part.examples) + part.num_skipped
    if part.num_skipped > _MAX_SKIPPED * num_rows:
        raise UserError(
            f"{part.path}: {part.num_skipped} of {num_rows} rows are malformed; is it the right file? "
            f"The first: {part.skipped[0]}"
        )
    return part


def _read(source: Source, training: bool, labelled: bool) -> Part:
    row = source.row
    # SQuAD-like training files have answers that are not where they say: such rows are skipped, whatever the row says.
    faults = Faults(skips=training and (row.skips_malformed or row.head == "span"))
    examples: list[Any] = []
    if row.head == "span" and source.ending == ".json":
        for path in source.paths:
            examples += squad_files.read_questions(path, row.unanswerable, training, faults)
    elif row.head == "tags" and source.ending in LINE_ENDINGS:
        examples = list(read_lines(source, faults))
    else:
        examples = _TABLES[row.head](source, faults, training, labelled).examples
    return Part(source.paths[0], examples, faults.num_skipped, faults.skipped, faults.remarks, source.name)


def _cut(part: Part, dev_share: float, dev: bool) -> Part:
    """The development rows of a training part, or its others.

    A row's own text decides, so that equal texts (questions about one context) are on one side, and rows that are added
    later move no other row.
    """
    chosen = [example for example in part.examples if _is_dev(example, dev_share) == dev]
    return Part(part.path, chosen, part.num_skipped, part.skipped, part.remarks, part.name)


def _is_dev(example: Any, dev_share: float) -> bool:
    match example:
        case TextExample():
            text = f"{example.first}\0{example.second or ''}"
        case ChoiceExample() | SpanExample():
            text = example.context
        case TagExample():
            text = " ".join(example.words)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < dev_share * 2.0**64
