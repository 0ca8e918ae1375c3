"""Contamination matching, the second parallel step: find the texts of the benchmarks in each cleaned document.

The matches of a partition are stored under a key made of the partition's key and the benchmarks' texts, so a changed
benchmark file repeats the matching but no cleaning.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from model.common.errors import UserError
from model.common.files import digest_of
from tasks import versions
from tasks.corpus.filters.benchmark_texts import BenchmarkItem, read_benchmark_texts
from tasks.corpus.filters.contamination import Contamination, ContaminationTable
from tasks.corpus.partition_store import File, MatchRecord, PartitionRecord, PartitionStore, check_version
from tasks.corpus.sources.hashed_words import hash_words
from tasks.params.corpus import ContaminationSettings
from tasks.project.progress import echo

_SCHEMA = pyarrow.schema(
    [("row", pyarrow.int64()), *((name, pyarrow.list_(pyarrow.int32())) for name in ("items", "passages", "short"))]
)
TABLE_SUFFIX = ".table.npz"


@dataclass(frozen=True)
class Benchmarks:
    """The benchmarks' texts, ready for workers to compare with."""

    table: ContaminationTable
    file: File
    """The table in the store."""
    files: list[str]
    """Files that were read, relative to data/."""
    missing: list[str]
    """Files that are not there, and benchmarks whose files are malformed."""

    def key(self, partition_key: str) -> str:
        """Key of the matches of a partition."""
        return digest_of([partition_key, self.table.digest, versions.corpus])


@dataclass(frozen=True)
class MatchingJob:
    """A cleaned partition on its way to a worker."""

    key: str
    record: PartitionRecord
    table: File
    store: PartitionStore
    version: int = versions.corpus


def open_benchmarks(settings: ContaminationSettings, data_dir: Path, store: PartitionStore) -> Benchmarks | None:
    """Read the benchmarks' dev and test files and put their table into the store; None where it is off.

    A report does without a benchmark whose files are malformed, and says so: fine-tuning will name the row.

    Raises:
        UserError: a file is malformed, and documents that hold its rows are to be dropped.
    """
    if settings.action == "off":
        return None
    items: list[BenchmarkItem] = []
    read: list[str] = []
    missing: set[str] = set()
    for name in settings.benchmarks:
        try:
            texts = read_benchmark_texts([name], data_dir)
        except UserError as error:
            if settings.action == "drop":
                raise
            echo(f"corpus: {name} is not looked for: {error}")
            missing.add(f"{name} (malformed)")
            continue
        items += texts.items
        read += texts.files
        missing.update(texts.missing)
    table = ContaminationTable.of(items, settings)
    with store.scratch() as folder:
        path = folder / f"{table.digest}{TABLE_SUFFIX}"
        table.save(path)
        return Benchmarks(table, store.put(path), read, sorted(missing))


def match_partition(work: MatchingJob) -> MatchRecord:
    """Look for the benchmarks' texts in the documents of one partition; a row for each document that holds one."""
    check_version(work.version)
    file = work.table
    table = _load(work.store, file["name"], file["bytes"], file["sha256"])  # type: ignore[arg-type]
    rows: list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = []
    for number, sentences in enumerate(_sentences(work.record, work.store)):
        found = table.find(hash_words(sentences))
        if found != Contamination():
            rows.append((number, found.items, found.passages, found.short))
    with work.store.scratch() as folder:
        path = folder / f"{work.key}.findings.parquet"
        columns: Sequence[Any] = list(zip(*rows)) or [()] * len(_SCHEMA)
        arrays = [pyarrow.array(values, field.type) for values, field in zip(columns, _SCHEMA)]
        pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=_SCHEMA), path, compression="zstd")
        findings: MatchRecord = {"key": work.key, "parts": [], "facts": work.store.put(path)}
        work.store.put_record(findings)
    return findings


def read_matches(findings: MatchRecord, store: PartitionStore) -> dict[int, Contamination]:
    """Row → matches of the documents of a partition that contain benchmark text."""
    with store.fetch(findings["facts"]) as path:
        table = pyarrow.parquet.read_table(path, schema=_SCHEMA, partitioning=None)
    rows = zip(*(column.to_pylist() for column in table.columns))
    return {row: Contamination(*map(tuple, found)) for row, *found in rows}


def _sentences(record: PartitionRecord, store: PartitionStore) -> Iterator[list[str]]:
    for part in record["parts"]:
        with store.fetch(part) as path, pyarrow.parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group, columns=["sentences"]).column(0).to_pylist()


@functools.lru_cache(maxsize=1)
def _load(store: PartitionStore, name: str, num_bytes: int, sha256: str) -> ContaminationTable:
    with store.fetch({"name": name, "bytes": num_bytes, "sha256": sha256}) as path:
        return ContaminationTable.load(path)
