"""Build the corpus: clean partitions in parallel, select documents in order, and publish them as shards."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from model.common.errors import UserError
from model.common.files import write_json
from tasks.corpus.cleaning import CleaningJob, clean_partition
from tasks.corpus.data_card import card_content, write_card
from tasks.corpus.executors import Executor, LocalProcesses
from tasks.corpus.filters.contamination_matching import Benchmarks, MatchingJob, match_partition, open_benchmarks
from tasks.corpus.partition_store import File, MatchRecord, PartitionRecord, PartitionStore, describe, open_store
from tasks.corpus.partitions import Partition, list_partitions
from tasks.corpus.publishing import INDEX_NAME, ShardPlan, index_content, plan_shards, shard_record, write_shard
from tasks.corpus.selection import Selection, select_documents
from tasks.corpus.shards import ShardWriter
from tasks.corpus.shuffle import shuffle_words
from tasks.params.corpus import CorpusSettings

Report = Callable[[int, int, str], None]
# Starting processes takes about as long as these.
_WORTH_CLEANERS_BYTES = 4 << 20  # of input
_WORTH_WRITERS_BYTES = 32 << 20  # of shards
_WORTH_COMPARERS_BYTES = 8 << 20  # of cleaned partitions


class CorpusSummary(TypedDict):
    """Counts of a finished corpus."""

    documents: int
    """Rows of the corpus (a document of weight 2 is two)."""
    sentences: int
    words: int
    """As tasks.corpus.sources.prose.num_words counts them."""
    drops: dict[str, int]
    """Dropped documents by reason; "sentence with markup" counts sentences."""
    contamination: dict[str, int]
    """Number of dev and test rows found in the corpus, for each benchmark with any."""
    missing: list[str]
    """Benchmark files that are missing or malformed, and were not matched."""
    sources: dict[str, dict[str, int]]
    """Documents, sentences and words of each source."""


def build_corpus(
    settings: CorpusSettings,
    data_dir: Path,
    out_dir: Path,
    report: Report | None = None,
    num_workers: int = 1,
    partitions_dir: Path | None = None,
    executor: Executor | None = None,
) -> CorpusSummary:
    """Write the corpus of all sources into `out_dir`: the same bytes whoever cleaned what when, restarted or not.

    Args:
        settings: the section `corpus` of params.yaml.
        data_dir: the folder that the sources' paths start from.
        out_dir: a folder to fill; where it fails, nothing is left in it.
        report: called with bytes cleaned, bytes to clean and a short text.
        num_workers: processes of this machine that work at a time.
        partitions_dir: where cleaned partitions are kept for the next run; without it, for this run only.
        executor: who cleans; processes of this machine where it is not given.

    Raises:
        Paused: the run was asked to stop; partitions that are done are kept.
        UserError: a source is missing, damaged or of another form than its kind, or nothing is left of it all.
    """
    with _workplace(out_dir, partitions_dir) as (scratch, kept_dir):
        partitions = list_partitions(settings, data_dir, kept_dir / "files.json", num_workers)
        store = open_store(settings.exchange, kept_dir / "units")
        benchmarks = open_benchmarks(settings.contamination, data_dir, store)
        to_compare = benchmarks if benchmarks and benchmarks.table.names else None
        cleaner = _Cleaner(settings, partitions, store, to_compare, report)
        selection = cleaner.run(executor, num_workers)
        plans = plan_shards(
            selection.partitions, store, scratch if settings.shuffle_words else out_dir, settings.shard_bytes
        )
        written = _publish(plans, num_workers, cleaner.say)
        shards = [shard_record(plan, file) for plan, (file, _) in zip(plans, written)]
        index = index_content(selection, shards, settings, store, benchmarks)
        if not index["documents"]:
            dropped = ", ".join(f"{count:,} {reason}" for reason, count in index["drops"].items())
            raise UserError(f"corpus: no document is left; dropped: {dropped or 'none, sources are empty'}")
        if settings.shuffle_words:
            shuffled = _shuffled(settings, [plan.path for plan in plans], out_dir, cleaner.say)
            index["shards"] = [{"file": describe(path)} for path in shuffled]
        write_json(out_dir / INDEX_NAME, index)
        sentence_lengths = sum((Counter(lengths) for _, lengths in written), Counter[int]())
        write_card(card_content(index, settings, selection, sentence_lengths), out_dir)
        store.prune(cleaner.keys)
    return _summary(index)


class _Cleaner:
    """Cleans what choosing needs: all partitions, but of a source with max_documents not many more than fill it."""

    def __init__(
        self,
        settings: CorpusSettings,
        partitions: Sequence[Partition],
        store: PartitionStore,
        benchmarks: Benchmarks | None,
        report: Report | None,
    ) -> None:
        self._settings = settings
        self._units = partitions
        self._store = store
        self._benchmarks = benchmarks
        self._report = report
        self._records: dict[str, PartitionRecord] = {}
        self._findings: dict[str, MatchRecord] = {}
        self._size_of = {partition.key: partition.num_bytes for partition in partitions}
        self._total_bytes = sum(self._size_of.values())

    def run(self, executor: Executor | None, num_workers: int) -> Selection:
        """Reuse the partitions that are done, and clean the others until the selection is complete."""
        self._records = self._store.records(list(self._size_of), num_workers)
        self._findings = self._store.records(list(self._finding_keys.values()), num_workers)
        if self._records:
            self.say(f"{len(self._records):,} of {len(self._size_of):,} partitions are already cleaned")
        limited = {source.name for source in self._settings.sources if source.max_documents is not None}
        num_of_limited = max(4, num_workers)
        while True:
            partitions = list(self._first_partitions(limited, num_of_limited))
            self._clean(partitions, executor, num_workers)
            self._compare(partitions, executor, num_workers)
            selection = select_documents(
                self._settings, [self._known(partition) for partition in partitions], self._store
            )
            short = limited - selection.full
            if len(partitions) == len(list(self._first_partitions(limited, 2 * num_of_limited))) or not short:
                return selection
            num_of_limited *= 2

    def say(self, text: str, done: bool = False) -> None:
        """Report progress with a text; `done` when there is nothing left to clean."""
        if self._report:
            cleaned = sum(map(self._size_of.__getitem__, self._records))
            self._report(self._total_bytes if done else cleaned, self._total_bytes, text)

    @property
    def keys(self) -> set[str]:
        """Keys of everything that a later run may reuse."""
        table = {self._benchmarks.table.digest} if self._benchmarks else set()
        return {*self._size_of, *self._finding_keys.values(), *table}

    @property
    def _finding_keys(self) -> dict[str, str]:
        """Unit → what was found in it."""
        return {key: self._benchmarks.key(key) for key in self._size_of} if self._benchmarks else {}

    def _known(self, partition: Partition) -> tuple[Partition, PartitionRecord, MatchRecord | None]:
        findings = self._findings[self._benchmarks.key(partition.key)] if self._benchmarks else None
        return partition, self._records[partition.key], findings

    def _first_partitions(self, limited: set[str], number: int) -> Iterator[Partition]:
        """All partitions, but at most `number` of each limited source."""
        counts: Counter[str] = Counter()
        for partition in self._units:
            counts[partition.source.name] += 1
            if partition.source.name not in limited or counts[partition.source.name] <= number:
                yield partition

    def _clean(self, partitions: Sequence[Partition], executor: Executor | None, num_workers: int) -> None:
        missing = {partition.key: partition for partition in partitions if partition.key not in self._records}
        work = [CleaningJob(partition, self._settings, self._store) for partition in missing.values()]
        if executor is None:
            num_bytes = sum(partition.num_bytes for partition in missing.values())
            is_worth_workers = num_bytes >= min(self._settings.unit_bytes, _WORTH_CLEANERS_BYTES)
            executor = LocalProcesses(num_workers if is_worth_workers else 1)
        for done, record in executor.map(clean_partition, work):
            self._records[done.partition.key] = record
            self.say(
                f"{done.partition.source.name}: {record['documents']:,} documents of {done.partition.chunks[0].name}"
            )

    def _compare(self, partitions: Sequence[Partition], executor: Executor | None, num_workers: int) -> None:
        if self._benchmarks is None:
            return
        records = {self._benchmarks.key(partition.key): self._records[partition.key] for partition in partitions}
        work = [
            MatchingJob(key, record, self._benchmarks.file, self._store)
            for key, record in records.items()
            if key not in self._findings
        ]
        if executor is None:
            num_bytes = sum(part["bytes"] for one in work for part in one.record["parts"])
            executor = LocalProcesses(num_workers if num_bytes >= _WORTH_COMPARERS_BYTES else 1)
        for done, findings in executor.map(match_partition, work):
            self._findings[done.key] = findings
            self.say(f"compared with the benchmarks: {done.record['label']}")


def _summary(index: dict[str, Any]) -> CorpusSummary:
    parts = index["contamination"].get("parts", {})
    found = {part: counts["items_found"] for part, counts in parts.items() if counts["items_found"]}
    missing = index["contamination"].get("missing", [])
    named = {name: index[name] for name in CorpusSummary.__annotations__ if name in index}
    return {**named, "contamination": found, "missing": missing}  # type: ignore[typeddict-item]


def _publish(
    plans: Sequence[ShardPlan], num_workers: int, say: Callable[[str, bool], None]
) -> list[tuple[File, dict[int, int]]]:
    """Write the shards; returns the description and the sentence lengths of each, in order."""
    size = sum(part.file["bytes"] for plan in plans for _, part in plan.parts)
    executor = LocalProcesses(num_workers if size >= _WORTH_WRITERS_BYTES else 1)
    files: dict[Path, tuple[File, dict[int, int]]] = {}
    for plan, file in executor.map(write_shard, plans):
        files[plan.path] = file
        say(f"{len(files):,} of {len(plans):,} shards written", True)
    return [files[plan.path] for plan in plans]


def _shuffled(settings: CorpusSettings, paths: list[Path], out_dir: Path, report: Callable[[str], None]) -> list[Path]:
    """Write the negative control instead of the corpus."""
    writer = ShardWriter(out_dir, settings.shard_bytes)
    shuffle_words(paths, writer, settings.shuffle_seed, report)
    writer.close()
    return writer.paths


@contextmanager
def _workplace(out_dir: Path, partitions_dir: Path | None) -> Iterator[tuple[Path, Path]]:
    """(Scratch folder inside `out_dir`, folder of the partitions); after an error, `out_dir` is empty."""
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
