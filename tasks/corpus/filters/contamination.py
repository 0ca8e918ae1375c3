"""Contamination: find texts of the benchmarks' dev and test sets in the corpus.

Following Brown et al. 2020 (arXiv:2005.14165, appendix C), a document contains a benchmark row if it contains 13
consecutive words of the row, or the whole row if it is shorter. Case, punctuation and sentence boundaries are ignored.
Very short texts are common phrases; they match only a whole sentence of the document and are counted separately.

The word n-grams of all benchmarks are collected in a table once. Matching, the second parallel step, compares each
document with the table by a rolling hash. The key of a partition's matches combines the partition's key and the
benchmark texts, so changing a benchmark file repeats the matching but not the cleaning.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict

import numba
import numpy as np
import pyarrow
import pyarrow.parquet

from model.benchmarks import splits
from model.benchmarks.custom_task import row_of
from model.benchmarks.readers.examples import ChoiceExample, SpanExample, Split, TagExample, TextExample
from model.benchmarks.sources import split_sources
from model.common.errors import UserError
from model.common.files import digest_of
from model.common.rng import fold, mix
from tasks import versions
from tasks.corpus.partition_store import File, MatchRecord, PartitionRecord, PartitionStore, check_version
from tasks.corpus.shards import read_documents, table_of
from tasks.corpus.sources.hashed_words import HashedWords, hash_runs, hash_words
from tasks.params.corpus import ContaminationSettings
from tasks.project.progress import warn

_PASSAGE = "/passage"
# Undo the Penn Treebank tokenization of MRPC, SST-2, SWAG and CoNLL-2003.
_CLITIC = re.compile(r" (?=n['’]t\b|['’](?:s|re|ve|ll|d|m)\b)", re.I)
_BRACKET = re.compile(r"-[LR][RSC]B-", re.I)
_FACTOR = np.uint64(0xD1342543DE82EF95)
_MOST_EXAMPLES = 5
_SCHEMA = pyarrow.schema(
    [("row", pyarrow.int64()), *((name, pyarrow.list_(pyarrow.int32())) for name in ("items", "passages", "short"))]
)


class BenchmarkItem(NamedTuple):
    """A row of a dev or test file, or a passage that rows share."""

    name: str
    """benchmark/part/id, or benchmark/part/id/passage, with the id of the first row that uses the passage."""
    texts: tuple[str, ...]
    """The texts of the row; each is searched for separately."""


@dataclass(frozen=True)
class BenchmarkTexts:
    items: list[BenchmarkItem]
    files: list[str]
    """Paths relative to data/."""
    missing: list[str]


@dataclass(frozen=True)
class Contamination:
    """Benchmark texts found in one document, as indices of the table's items."""

    items: tuple[int, ...] = ()
    passages: tuple[int, ...] = ()
    short: tuple[int, ...] = ()
    """Items of which only a very short text matches, as a whole sentence; never a reason to drop."""

    def is_reason_to_drop(self, settings: ContaminationSettings) -> bool:
        return settings.action == "drop" and bool(self.items or (settings.drop_passages and self.passages))


class PartCounts(TypedDict):
    """Matches of one part of a benchmark in the corpus."""

    items: int
    """Number of rows in the file."""
    items_found: int
    short_found: int
    """Number of additional rows of which only a very short text was found."""
    passages: int
    passages_found: int
    documents: int
    """Number of documents that contain at least one of its rows or passages, not counting short matches."""
    examples: list[str]
    """Names of some of the rows found."""


class ContaminationTable:
    """Sorted word n-grams of all items, and the names of the items."""

    def __init__(self, names: Sequence[str], digest: str, arrays: Mapping[str, np.ndarray]) -> None:
        self.names = list(names)
        self.digest = digest
        """Hash of everything that matches depend on, except the document."""
        self._arrays = dict(arrays)
        self._is_passage = [name.endswith(_PASSAGE) for name in self.names]

    @classmethod
    def of(cls, items: Sequence[BenchmarkItem], settings: ContaminationSettings) -> Self:
        runs = [(number, *_runs_of(text, settings)) for number, item in enumerate(items) for text in item.texts]
        lengths = sorted({length for _, length, keys in runs if len(keys)})
        sizes = np.array([len(keys) for _, _, keys in runs], dtype=np.int64)
        owner = np.repeat(np.array([number for number, _, _ in runs], dtype=np.int32), sizes)
        is_short = np.repeat(np.array([length == 0 for _, length, _ in runs], dtype=bool), sizes)
        keys = np.concatenate([np.empty(0, np.uint64), *(keys for _, _, keys in runs)])
        order = np.lexsort((owner, keys))
        unique, first = np.unique(keys[order], return_index=True)
        bits = np.zeros(1 << max(16, (16 * len(unique)).bit_length() - 3), dtype=np.uint8)
        _fill_filter(unique, bits)
        arrays = {
            "keys": unique, "owners": owner[order], "starts": np.append(first, len(keys)),
            "is_short": is_short[order][first], "lengths": np.array(lengths, dtype=np.int64), "filter": bits,
        }  # fmt: skip
        rules = settings.model_dump(exclude={"action", "drop_passages", "benchmarks"})
        digest = digest_of([[item.name, *item.texts] for item in items] + [rules])
        return cls([item.name for item in items], digest, arrays)

    def save(self, path: Path) -> None:
        text = json.dumps([self.digest, self.names]).encode()
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, text=np.frombuffer(text, dtype=np.uint8), **self._arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        digest, names = json.loads(arrays.pop("text").tobytes())
        return cls(names, digest, arrays)

    def find(self, document: HashedWords) -> Contamination:
        table = self._arrays
        found = _find(document.words, document.sentence_digests, table["lengths"], table["keys"], table["filter"])
        items: set[int] = set()
        passages: set[int] = set()
        short: set[int] = set()
        for key in set(found.tolist()):
            for number in table["owners"][table["starts"][key] : table["starts"][key + 1]].tolist():
                (passages if self._is_passage[number] else short if table["is_short"][key] else items).add(number)
        return Contamination(tuple(sorted(items)), tuple(sorted(passages)), tuple(sorted(short - items)))

    def report(self, findings: Iterable[Contamination]) -> dict[str, PartCounts]:
        """Count the matches in a corpus by "benchmark/part"."""
        part_of = ["/".join(name.split("/", 2)[:2]) for name in self.names]
        found: set[int] = set()
        short: set[int] = set()
        documents: Counter[str] = Counter()
        for finding in findings:
            numbers = finding.items + finding.passages
            found.update(numbers)
            short.update(finding.short)
            documents.update({part_of[number] for number in numbers})
        counts: dict[str, PartCounts] = {
            part: {
                "items": 0, "items_found": 0, "short_found": 0, "passages": 0, "passages_found": 0,
                "documents": documents[part], "examples": [],
            }
            for part in sorted(set(part_of))
        }  # fmt: skip
        for number, (name, part) in enumerate(zip(self.names, part_of)):
            part_counts = counts[part]
            if self._is_passage[number]:
                part_counts["passages"] += 1
                part_counts["passages_found"] += number in found
                continue
            part_counts["items"] += 1
            part_counts["items_found"] += number in found
            part_counts["short_found"] += number in short and number not in found
            if number in found and len(part_counts["examples"]) < _MOST_EXAMPLES:
                part_counts["examples"].append(name)
        return counts


def read_benchmark_texts(names: Iterable[str], data_dir: Path) -> BenchmarkTexts:
    """Read the dev and test rows of the benchmarks; missing files are skipped and listed.

    Raises:
        UserError: a file is malformed.
    """
    texts = BenchmarkTexts([], [], [])
    for name in names:
        benchmark = row_of(name, data_dir)
        for part, files, read in (("dev", benchmark.dev, splits.read_dev), ("test", benchmark.test, splits.read_test)):
            sources = split_sources(benchmark, data_dir, part)
            texts.missing.extend(source.name for source in sources.values() if not source.exists)
            there = {suffix: files[suffix] for suffix, source in sources.items() if source.exists}
            if not there:
                continue
            for suffix, examples in read(benchmark.model_copy(update={part: there}), data_dir).items():
                texts.files.append(sources[suffix].name)
                texts.items.extend(_items(benchmark.name, f"{part}_{suffix}" if suffix else part, examples))
    return texts


def _items(benchmark: str, part: str, examples: Split) -> Iterator[BenchmarkItem]:
    passages: set[str] = set()
    for number, example in enumerate(examples.examples):
        own, quoted = _texts(benchmark, example)
        name = f"{benchmark}/{part}/{number if example.id is None else example.id}"
        yield BenchmarkItem(name, tuple(map(_running, own)))
        if quoted is not None and quoted not in passages:
            passages.add(quoted)
            yield BenchmarkItem(name + _PASSAGE, (_running(quoted),))


def _texts(benchmark: str, example: Any) -> tuple[list[str], str | None]:
    """Return the texts of the row itself, and the passage that the row refers to, if any."""
    match example:
        case SpanExample():
            return [example.question], example.context
        case ChoiceExample():
            return [example.context, *example.endings], None
        case TagExample():
            return [" ".join(example.words)], None
        case TextExample():
            if benchmark == "qnli":  # its second text is from a SQuAD passage, which is a Wikipedia paragraph
                return [example.first], example.second
            return [text for text in (example.first, example.second) if text], None
    raise AssertionError(f"unsupported example type: {type(example).__name__}")


def _running(text: str) -> str:
    return _CLITIC.sub("", _BRACKET.sub(" ", text)).replace("\n", " ")


@dataclass(frozen=True)
class Benchmarks:
    """Benchmark texts, stored for the workers."""

    table: ContaminationTable
    file: File
    """The file of the table in the store."""
    files: list[str]
    missing: list[str]
    """Missing files, and benchmarks with malformed files."""

    def key(self, partition_key: str) -> str:
        return digest_of([partition_key, self.table.digest, versions.corpus])


@dataclass(frozen=True)
class MatchingJob:
    """Arguments for matching one cleaned partition in a worker."""

    key: str
    record: PartitionRecord
    table: File
    store: PartitionStore
    version: int = versions.corpus


def open_benchmarks(settings: ContaminationSettings, data_dir: Path, store: PartitionStore) -> Benchmarks | None:
    """Read the benchmarks' dev and test files and store their table; return None if the check is off.

    With `action: report`, benchmarks with malformed files are skipped with a message; fine-tuning names the bad row.

    Raises:
        UserError: a file is malformed and `action` is drop.
    """
    if settings.action == "off":
        return None
    texts = BenchmarkTexts([], [], [])
    for name in settings.benchmarks:
        try:
            found = read_benchmark_texts([name], data_dir)
        except UserError as error:
            if settings.action == "drop":
                raise
            warn(f"corpus: skipping the contamination check for {name}: {error}")
            texts.missing.append(f"{name} (malformed)")
            continue
        texts.items.extend(found.items)
        texts.files.extend(found.files)
        texts.missing.extend(found.missing)
    table = ContaminationTable.of(texts.items, settings)
    with store.scratch() as folder:
        path = folder / f"{table.digest}.table.npz"
        table.save(path)
        return Benchmarks(table, store.put(path), texts.files, sorted(set(texts.missing)))


def match_partition(work: MatchingJob) -> MatchRecord:
    """Search the documents of a partition for benchmark texts, and store one row per document with a match."""
    check_version(work.version)
    table = _load(work.store, tuple(work.table.items()))
    rows: list[tuple[Any, ...]] = []
    for number, (sentences,) in enumerate(_documents(work.record, work.store)):
        found = table.find(hash_words(sentences))
        if found != Contamination():
            rows.append((number, found.items, found.passages, found.short))
    with work.store.scratch() as folder:
        path = folder / f"{work.key}.findings.parquet"
        pyarrow.parquet.write_table(table_of(rows, _SCHEMA), path, compression="zstd")
        findings: MatchRecord = {"key": work.key, "parts": [], "facts": work.store.put(path)}
        work.store.put_record(findings)
    return findings


def read_matches(findings: MatchRecord, store: PartitionStore) -> dict[int, Contamination]:
    """Return the matches of a partition by row, for the documents that contain benchmark text."""
    with store.fetch(findings["facts"]) as path:
        table = pyarrow.parquet.read_table(path, schema=_SCHEMA, partitioning=None)
    rows = zip(*(column.to_pylist() for column in table.columns))
    return {row: Contamination(*map(tuple, found)) for row, *found in rows}


def _documents(record: PartitionRecord, store: PartitionStore) -> Iterator[tuple[Any, ...]]:
    for part in record["parts"]:
        with store.fetch(part) as path:
            yield from read_documents([path], ["sentences"])


@functools.lru_cache(maxsize=1)
def _load(store: PartitionStore, file: tuple[tuple[str, Any], ...]) -> ContaminationTable:
    with store.fetch(dict(file)) as path:  # type: ignore[arg-type]
        return ContaminationTable.load(path)


def _runs_of(text: str, settings: ContaminationSettings) -> tuple[int, np.ndarray]:
    """Return the n-gram length of a text (0 for a whole sentence), and the keys of its n-grams."""
    hashed = hash_words([text])
    num_words = len(hashed.words)
    if num_words < settings.min_sentence_words:
        return 0, np.empty(0, dtype=np.uint64)
    if num_words < settings.min_words:
        return 0, _sentence_keys(hashed.sentence_digests)
    length = min(num_words, settings.run_words)
    return length, _run_keys(hashed.words, length)


@numba.njit(cache=True, nogil=True)
def _run_keys(words: np.ndarray, length: int) -> np.ndarray:
    """Return (num_words - length + 1,) uint64 keys, one for each n-gram of `length` words."""
    keys = hash_runs(words, length, _FACTOR)
    for place in range(len(keys)):
        keys[place] = mix(keys[place] ^ np.uint64(length))
    return keys


@numba.njit(cache=True, nogil=True)
def _sentence_keys(digests: np.ndarray) -> np.ndarray:
    keys = np.empty(len(digests), dtype=np.uint64)
    for place in range(len(digests)):
        keys[place] = fold(digests[place], np.uint64(0))
    return keys


@numba.njit(cache=True, nogil=True)
def _fill_filter(keys: np.ndarray, bits: np.ndarray) -> None:
    for key in keys:
        place = key & np.uint64(8 * len(bits) - 1)
        bits[place >> np.uint64(3)] |= np.uint8(1) << np.uint8(place & np.uint64(7))


@numba.njit(cache=True, nogil=True)
def _find(
    words: np.ndarray, digests: np.ndarray, lengths: np.ndarray, keys: np.ndarray, bits: np.ndarray
) -> np.ndarray:
    """Return (num_found,) int64 positions in `keys` of the n-grams in the document, with repetitions."""
    found = np.empty(16, dtype=np.int64)
    count = 0
    mask = np.uint64(8 * len(bits) - 1)
    for length in lengths:
        candidates = _sentence_keys(digests) if length == 0 else _run_keys(words, length)
        for key in candidates:
            place = key & mask
            if not (bits[place >> np.uint64(3)] >> np.uint8(place & np.uint64(7))) & np.uint8(1):
                continue
            at = np.searchsorted(keys, key)
            if at < len(keys) and keys[at] == key:
                if count == len(found):
                    found = np.concatenate((found, np.empty(count, dtype=np.int64)))
                found[count] = at
                count += 1
    return found[:count]
