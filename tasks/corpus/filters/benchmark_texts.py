"""The texts of the benchmarks' dev and test files, for finding them in a corpus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.benchmarks import splits
from model.benchmarks.custom_task import row_of
from model.benchmarks.readers.examples import ChoiceExample, SpanExample, Split, TagExample, TextExample
from model.benchmarks.sources import dev_sources, test_sources
from model.benchmarks.table import Benchmark

ITEM, PASSAGE = "item", "passage"
_PASSAGES = frozenset({("qnli", "second")})
"""Fields that quote SQuAD's passages, which are paragraphs of Wikipedia."""
# Penn Treebank words, as MRPC, SST-2, SWAG and CoNLL-2003 have them, back to running text.
_CLITIC = re.compile(r" (?=n['’]t\b|['’](?:s|re|ve|ll|d|m)\b)", re.I)
_BRACKET = re.compile(r"-[LR][RSC]B-", re.I)


@dataclass(frozen=True)
class BenchmarkItem:
    """One row of a dev or test file, or one passage that rows share."""

    benchmark: str
    part: str
    """The file's part and suffix: dev, test, dev_matched."""
    id: str
    """The row's own name or number; for a passage, that of the first row that has it."""
    kind: str
    """item or passage."""
    texts: tuple[str, ...]
    """The row's texts, each of which is looked for by itself."""

    @property
    def name(self) -> str:
        """benchmark/part/id, with the kind where it is a passage."""
        return f"{self.benchmark}/{self.part}/{self.id}" + ("/passage" if self.kind == PASSAGE else "")


@dataclass(frozen=True)
class BenchmarkTexts:
    """All that was read, and which files were not there."""

    items: list[BenchmarkItem]
    files: list[str]
    """Relative to data/."""
    missing: list[str]


def read_benchmark_texts(names: Iterable[str], data_dir: Path) -> BenchmarkTexts:
    """The dev and test rows of these benchmarks; files that are not there are left out and named.

    Raises:
        UserError: a file is malformed.
    """
    items: list[BenchmarkItem] = []
    files: list[str] = []
    missing: list[str] = []
    for name in names:
        benchmark = row_of(name, data_dir)
        for part, file, examples in _parts(benchmark, data_dir, missing):
            files.append(file)
            items += _items(benchmark.name, part, examples)
    return BenchmarkTexts(items, files, missing)


def _parts(benchmark: Benchmark, data_dir: Path, missing: list[str]) -> Iterator[tuple[str, str, Split]]:
    for part, files in (("dev", benchmark.dev), ("test", benchmark.test)):
        sources = (dev_sources if part == "dev" else test_sources)(benchmark, data_dir)
        there = {suffix: files[suffix] for suffix, source in sources.items() if source.exists}
        missing += [source.name for source in sources.values() if not source.exists]
        if not there:
            continue
        read = splits.read_dev if part == "dev" else splits.read_test
        for suffix, examples in read(benchmark.model_copy(update={part: there}), data_dir).items():
            yield f"{part}_{suffix}" if suffix else part, sources[suffix].name, examples


def _items(name: str, part: str, examples: Split) -> Iterator[BenchmarkItem]:
    passages: set[str] = set()
    for number, example in enumerate(examples.examples):
        own, quoted, identity = _texts(name, example)
        identity = str(number) if identity is None else identity
        yield BenchmarkItem(name, part, identity, ITEM, tuple(map(_running, own)))
        for passage in quoted:
            if passage not in passages:
                passages.add(passage)
                yield BenchmarkItem(name, part, identity, PASSAGE, (_running(passage),))


def _texts(name: str, example: Any) -> tuple[list[str], list[str], str | None]:
    """(Texts of the row's own, passages that it is about, its name)."""
    match example:
        case SpanExample():
            return [example.question], [example.context], example.id
        case ChoiceExample():
            return [example.context, *example.endings], [], example.id
        case TagExample():
            return [" ".join(example.words)], [], example.id
        case TextExample():
            fields = {"first": example.first, "second": example.second or ""}
            quoted = [text for field, text in fields.items() if (name, field) in _PASSAGES]
            return [text for text in fields.values() if text and text not in quoted], quoted, example.id
    raise AssertionError(f"no texts known of {type(example).__name__}")


def _running(text: str) -> str:
    return _CLITIC.sub("", _BRACKET.sub(" ", text)).replace("\n", " ")
