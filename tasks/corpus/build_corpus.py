"""Build the corpus: clean partitions in parallel, select documents in order, and publish them as shards.

The negative control (`shuffle_words`) permutes all words of the corpus. It keeps word frequencies and the lengths of
sentences and documents, but destroys word order and co-occurrence. If pre-training on the shuffled corpus helped as
much as on the original text, the benefit would not come from language.
"""

from __future__ import annotations

import itertools
import shutil
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from model.common.errors import UserError
from model.common.files import write_json
from model.common.rng import GOLDEN_64, mix
from tasks.corpus.cleaning import CleaningJob, clean_partition
from tasks.corpus.data_card import card_content, write_card
from tasks.corpus.executors import DaskCluster
from tasks.corpus.filters.contamination import Benchmarks, MatchingJob, match_partition, open_benchmarks
from tasks.corpus.partition_store import File, MatchRecord, PartitionRecord, PartitionStore, describe, open_store
from tasks.corpus.partitions import Partition, list_partitions
from tasks.corpus.publishing import INDEX_NAME, ShardPlan, index_content, plan_shards, write_shard
from tasks.corpus.selection import Selection, select_documents
from tasks.corpus.shards import ShardWriter, read_documents
from tasks.params.corpus import CorpusSettings
from tasks.project.parallel import unordered_map

Report = Callable[[int, int, str], None]
# Below these sizes, starting processes takes longer than the work itself.
_WORTH_CLEANERS_BYTES = 4 << 20  # of input
_WORTH_WRITERS_BYTES = 32 << 20  # of shards
_WORTH_COMPARERS_BYTES = 8 << 20  # of cleaned partitions


class CorpusSummary(TypedDict):
    """Counts of a finished corpus."""

    documents: int
    """Number of rows in the corpus; a document with weight 2 counts as two rows."""
    sentences: int
    words: int
    """Number of words, as counted by tasks.corpus.sources.prose.num_words."""
    drops: dict[str, int]
    """Dropped documents by reason; "sentence with markup" counts sentences."""
    contamination: dict[str, int]
    """Number of dev and test rows found in the corpus, for each benchmark part with at least one."""
    missing: list[str]
    """Benchmark files that were skipped because they are missing or malformed."""
    sources: dict[str, dict[str, int]]
    """Number of documents, sentences and words from each source."""


def build_corpus(
    settings: CorpusSettings,
    data_dir: Path,
    out_dir: Path,
    report: Report | None = None,
    num_workers: int = 1,
    partitions_dir: Path | None = None,
    executor: DaskCluster | None = None,
) -> CorpusSummary:
    """Write the corpus of all sources into `out_dir`. The output does not depend on the number of workers or restarts.

    Args:
        settings: the `corpus` section of params.yaml; source paths are relative to `data_dir`.
        out_dir: the output folder; it is emptied if the build fails.
        report: progress callback; receives the bytes cleaned, the total bytes and a short text.
        partitions_dir: the folder that keeps cleaned partitions for later runs; None discards them after this run.
        executor: the Dask cluster that cleans partitions; None uses `num_workers` local processes.

    Raises:
        Paused: a stop was requested; finished partitions are kept.
        UserError: a source is missing, damaged or in the wrong format, or no document passes the filters.
    """
    with _workplace(out_dir, partitions_dir) as (scratch, kept_dir):
        partitions = list_partitions(settings, data_dir, kept_dir / "files.json", num_workers)
        store = open_store(settings.exchange, kept_dir / "units")
        benchmarks = open_benchmarks(settings.contamination, data_dir, store)
        to_compare = benchmarks if benchmarks and benchmarks.table.names else None
        cleaner = _Cleaner(settings, partitions, store, to_compare, report, num_workers, executor)
        selection = cleaner.run()
        unshuffled_dir = scratch if settings.shuffle_words else out_dir
        plans = plan_shards(selection.partitions, store, unshuffled_dir, settings.shard_bytes)
        written = _publish(plans, num_workers, cleaner.say)
        shards = [plan.record(file) for plan, (file, _) in zip(plans, written)]
        index = index_content(selection, shards, settings, store, benchmarks)
        if not index["documents"]:
            dropped = ", ".join(f"{count:,} {reason}" for reason, count in index["drops"].items())
            raise UserError(f"corpus: no document is left; dropped: {dropped or 'none, sources are empty'}")
        if settings.shuffle_words:
            writer = ShardWriter(out_dir, settings.shard_bytes)
            shuffle_words([plan.path for plan in plans], writer, settings.shuffle_seed, cleaner.say)
            writer.close()
            index["shards"] = [{"file": describe(path)} for path in writer.paths]
        write_json(out_dir / INDEX_NAME, index)
        sentence_lengths = sum((Counter(lengths) for _, lengths in written), Counter[int]())
        write_card(card_content(index, settings, selection, sentence_lengths), out_dir)
        store.prune(cleaner.keys)
    found = {part: counts["items_found"] for part, counts in index["contamination"].get("parts", {}).items()}
    summary: Any = {name: index[name] for name in CorpusSummary.__annotations__ if name in index}
    summary["contamination"] = {part: count for part, count in found.items() if count}
    summary["missing"] = index["contamination"].get("missing", [])
    return summary


@dataclass
class _Cleaner:
    """Cleans all partitions, or, for a source with max_documents, only about as many as that limit needs."""

    settings: CorpusSettings
    partitions: Sequence[Partition]
    store: PartitionStore
    benchmarks: Benchmarks | None
    report: Report | None
    num_workers: int
    executor: DaskCluster | None

    def __post_init__(self) -> None:
        self.size_of = {partition.key: partition.num_bytes for partition in self.partitions}
        self.total_bytes = sum(self.size_of.values())
        self.match_key = {key: self.benchmarks.key(key) for key in self.size_of} if self.benchmarks else {}
        self.records: dict[str, PartitionRecord] = self.store.records(list(self.size_of), self.num_workers)
        self.matches: dict[str, MatchRecord] = self.store.records(list(self.match_key.values()), self.num_workers)

    def run(self) -> Selection:
        """Reuse cleaned partitions, and clean others until the selection is complete."""
        if self.records:
            self.say(f"{len(self.records):,} of {len(self.size_of):,} partitions are already cleaned")
        limited = {source.name for source in self.settings.sources if source.max_documents is not None}
        num_of_limited = max(4, self.num_workers)
        while True:
            partitions = self._first_partitions(limited, num_of_limited)
            self._clean(partitions)
            if self.benchmarks:
                self._match(partitions, self.benchmarks)
            known = [
                (partition, self.records[partition.key], self.matches.get(self.match_key.get(partition.key, "")))
                for partition in partitions
            ]
            selection = select_documents(self.settings, known, self.store)
            num_of_limited *= 2
            is_all = len(partitions) == len(self._first_partitions(limited, num_of_limited))
            if is_all or limited <= selection.full:
                return selection

    def say(self, text: str, done: bool = False) -> None:
        """Report progress with a message; `done` means that cleaning is complete."""
        if self.report:
            num_bytes = self.total_bytes if done else sum(self.size_of[key] for key in self.records)
            self.report(num_bytes, self.total_bytes, text)

    @property
    def keys(self) -> set[str]:
        table = {self.benchmarks.table.digest} if self.benchmarks else set()
        return {*self.size_of, *self.match_key.values(), *table}

    def _first_partitions(self, limited: set[str], number: int) -> list[Partition]:
        """Return all partitions, but at most `number` of each limited source."""
        counts: Counter[str] = Counter()
        first = []
        for partition in self.partitions:
            counts[partition.source.name] += 1
            if partition.source.name not in limited or counts[partition.source.name] <= number:
                first.append(partition)
        return first

    def _clean(self, partitions: Sequence[Partition]) -> None:
        missing = {partition.key: partition for partition in partitions if partition.key not in self.records}
        jobs = [CleaningJob(partition, self.settings, self.store) for partition in missing.values()]
        num_bytes = sum(partition.num_bytes for partition in missing.values())
        is_large = num_bytes >= min(self.settings.unit_bytes, _WORTH_CLEANERS_BYTES)
        for done, record in self._map(clean_partition, jobs, is_large):
            self.records[done.partition.key] = record
            name = done.partition.chunks[0].name
            self.say(f"{done.partition.source.name}: {record['documents']:,} documents of {name}")

    def _match(self, partitions: Sequence[Partition], benchmarks: Benchmarks) -> None:
        records = {self.match_key[partition.key]: self.records[partition.key] for partition in partitions}
        missing = {key: record for key, record in records.items() if key not in self.matches}
        jobs = [MatchingJob(key, record, benchmarks.file, self.store) for key, record in missing.items()]
        num_bytes = sum(part["bytes"] for record in missing.values() for part in record["parts"])
        for done, matches in self._map(match_partition, jobs, num_bytes >= _WORTH_COMPARERS_BYTES):
            self.matches[done.key] = matches
            self.say(f"compared with the benchmarks: {done.record['label']}")

    def _map(self, function: Callable[[Any], Any], jobs: Sequence[Any], is_large: bool) -> Iterator[tuple[Any, Any]]:
        if self.executor:
            return self.executor.map(function, jobs)
        return unordered_map(function, jobs, self.num_workers if is_large else 1)


def _publish(
    plans: Sequence[ShardPlan], num_workers: int, say: Callable[[str, bool], None]
) -> list[tuple[File, dict[int, int]]]:
    """Write the shards and return the file description and sentence lengths of each, in order."""
    size = sum(part.file["bytes"] for plan in plans for _, part in plan.parts)
    files: dict[Path, tuple[File, dict[int, int]]] = {}
    for plan, file in unordered_map(write_shard, plans, num_workers if size >= _WORTH_WRITERS_BYTES else 1):
        files[plan.path] = file
        say(f"{len(files):,} of {len(plans):,} shards written", True)
    return [files[plan.path] for plan in plans]


@contextmanager
def _workplace(out_dir: Path, partitions_dir: Path | None) -> Iterator[tuple[Path, Path]]:
    """Yield the scratch folder inside `out_dir` and the partitions folder; empty `out_dir` after an error."""
    scratch = out_dir / ".scratch"
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        yield scratch, partitions_dir or scratch
    except BaseException:
        for path in out_dir.glob("*"):
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def shuffle_words(
    paths: list[Path], writer: ShardWriter, seed: int, report: Callable[[str], None] | None = None
) -> None:
    """Write the documents of `paths` with all words permuted; `seed` and the number of words decide the order.

    Memory use is about 20 bytes per word, plus the vocabulary.
    """
    pieces: dict[str, tuple[int, ...]] = {}
    words: dict[str, int] = {}
    stream = array("i")
    lengths = array("i")
    for (sentences,) in read_documents(paths, ["sentences"]):
        for sentence in sentences:
            before = len(stream)
            for run in sentence.split():
                numbers = pieces.get(run)
                if numbers is None:
                    numbers = pieces[run] = tuple(words.setdefault(word, len(words)) for word in _words(run))
                stream.extend(numbers)
            lengths.append(len(stream) - before)
    if report:
        report(f"shuffling {len(stream):,} words")
    permuted = np.asarray(stream)[permutation(len(stream), seed)]
    spelling = list(words)
    place = 0
    rest = iter(lengths)
    for source, identifier, title, sentences in read_documents(paths):
        shuffled = []
        for length in itertools.islice(rest, len(sentences)):
            shuffled.append(" ".join(map(spelling.__getitem__, permuted[place : place + length].tolist())))
            place += length
        writer.add(source, identifier, title, shuffled)


def permutation(size: int, seed: int) -> np.ndarray:
    """Return a permutation of range(size), obtained by sorting the positions by their 64-bit SplitMix64 hashes."""
    with np.errstate(over="ignore"):
        key = (np.uint64(seed) + np.uint64(1)) * GOLDEN_64
    places = np.arange(1, size + 1, dtype=np.uint64)
    return np.argsort(mix(key ^ (places * GOLDEN_64)), kind="stable")


def _words(run: str) -> list[str]:
    """Split a string without spaces into words as WordPiece does: letters, digits and combining marks stay together,
    and each punctuation mark is a word."""
    words: list[str] = []
    open_word = False
    for character in run:
        if unicodedata.category(character)[0] in "PS":
            words.append(character)
            open_word = False
        elif open_word:
            words[-1] += character
        else:
            words.append(character)
            open_word = True
    return words
