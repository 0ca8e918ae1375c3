"""Publish the corpus: write the selected documents as shards, and an index that records their origin.

A shard contains the selected documents of adjacent partitions of one source. Shard boundaries depend only on nearby
sizes and names, so a shard does not change when partitions elsewhere change, and DVC stores it only once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from pyarrow import compute

from tasks import versions
from tasks.corpus.cleaning import DropExample, DropExamples
from tasks.corpus.filters.contamination import Benchmarks
from tasks.corpus.partition_store import File, PartitionRecord, PartitionStore, describe
from tasks.corpus.partitions import grouped
from tasks.corpus.selection import SelectedFile, SelectedPartition, Selection
from tasks.corpus.shards import ROW_GROUP_CHARACTERS, SCHEMA, SHARD_PREFIX
from tasks.params.corpus import CorpusSettings

INDEX_NAME = "index.json"


@dataclass(frozen=True)
class ShardPlan:
    path: Path
    parts: list[tuple[PartitionRecord, SelectedFile]]
    store: PartitionStore

    def record(self, file: File) -> dict[str, Any]:
        """Return the entry of the written shard in index.json; `units` lists the keys of its partitions."""
        counts = sum((part.counts for _, part in self.parts), Counter[str]())
        return {
            "file": file,
            "source": self.parts[0][0]["source"],
            "units": list(dict.fromkeys(record["key"] for record, _ in self.parts)),
            **{name: counts[name] for name in ("documents", "sentences", "words")},
        }


def plan_shards(
    partitions: Sequence[SelectedPartition], store: PartitionStore, out_dir: Path, shard_bytes: int
) -> list[ShardPlan]:
    """Plan the shards of a corpus, in order; partitions without selected documents are skipped."""
    plans: list[ShardPlan] = []
    for _, of_source in groupby(partitions, key=lambda selected: selected.record["source"]):
        parts = [(selected.record, part) for selected in of_source for part in selected.parts]
        for group in grouped(
            parts,
            lambda part: part[1].file["bytes"],
            lambda part: f"{part[0]['label']} {part[1].file['name'].partition('-')[2]}",
            shard_bytes,
            2 * shard_bytes,
        ):
            plans.append(ShardPlan(out_dir / f"{SHARD_PREFIX}{len(plans):05d}.parquet", group, store))
    return plans


def write_shard(plan: ShardPlan) -> tuple[File, dict[int, int]]:
    """Write a shard by row group; return its file description and the number of sentences of each length in words."""
    lengths: Counter[int] = Counter()
    with (
        pyarrow.OSFile(str(plan.path), "wb") as file,
        pyarrow.parquet.ParquetWriter(file, SCHEMA, compression="zstd") as writer,
    ):
        for table in _row_groups(plan):
            lengths.update(_lengths(table))
            writer.write_table(table, row_group_size=len(table))
    return describe(plan.path), dict(lengths)


def index_content(
    selection: Selection,
    shards: Sequence[dict[str, Any]],
    settings: CorpusSettings,
    store: PartitionStore,
    benchmarks: Benchmarks | None,
) -> dict[str, Any]:
    """Build the content of index.json, which depends only on inputs and settings."""
    partitions = selection.partitions
    drops = sum((selected.drops for selected in partitions), Counter[str]())
    by_source = {source.name: Counter[str](documents=0, sentences=0, words=0) for source in settings.sources}
    for selected in partitions:
        by_source[selected.record["source"]].update(selected.counts)
    total = sum(by_source.values(), Counter[str]())
    contamination: dict[str, Any] = {"action": settings.contamination.action}
    if benchmarks is not None:
        contamination |= {
            "files": benchmarks.files,
            "missing": benchmarks.missing,
            "parts": benchmarks.table.report(selection.contamination),
        }
    return {
        "version": versions.corpus,
        **{name: total[name] for name in ("documents", "sentences", "words")},
        "drops": dict(sorted(drops.items())),
        "examples": _examples(selection, store),
        "contamination": contamination,
        "sources": {name: dict(counts) for name, counts in by_source.items()},
        "full": sorted(selection.full),
        "shards": list(shards),
        "units": [
            {name: selected.record[name] for name in ("key", "source", "label", "files", "input_bytes")}  # type: ignore[literal-required]
            | {"documents": selected.counts["documents"], "drops": dict(sorted(selected.drops.items()))}
            for selected in partitions
        ],
    }


def _examples(selection: Selection, store: PartitionStore) -> dict[str, list[DropExample]]:
    """Collect examples of dropped documents by reason; those dropped by selection are read from the store."""
    examples = DropExamples()
    for left in selection.left:
        note = ""
        if left.like:
            identifier, title, _ = _document(*left.like, store)
            note = f"{left.similarity:.2f} like {title or identifier}"
        examples.add(left.reason, *_document(left.record, left.row, store), note)
    for selected in selection.partitions:
        examples.update(selected.record["examples"])
    return dict(sorted(examples.by_reason.items()))


def _document(record: PartitionRecord, row: int, store: PartitionStore) -> tuple[str, str, list[str]]:
    parts = iter(record["parts"])
    part = next(parts)
    while row >= part["documents"]:
        row -= part["documents"]
        part = next(parts)
    with store.fetch(part) as path, pyarrow.parquet.ParquetFile(path) as file:
        group = 0
        while row >= file.metadata.row_group(group).num_rows:
            row -= file.metadata.row_group(group).num_rows
            group += 1
        table = file.read_row_group(group, columns=["id", "title", "sentences"])
        identifier, title, sentences = (column[row].as_py() for column in table.columns)
        return identifier, title, sentences


def _row_groups(plan: ShardPlan) -> Iterator[pyarrow.Table]:
    waiting: list[pyarrow.Table] = []
    num_characters = 0
    for _, part in plan.parts:
        with plan.store.fetch(part.file) as path:
            for table in _selected_rows(path, part):
                waiting.append(table)
                num_characters += table.column("sentences").nbytes
                if num_characters >= ROW_GROUP_CHARACTERS:
                    yield pyarrow.concat_tables(waiting).combine_chunks()
                    waiting, num_characters = [], 0
    if waiting:
        yield pyarrow.concat_tables(waiting).combine_chunks()


def _lengths(table: pyarrow.Table) -> dict[int, int]:
    """Count the sentences of each length in words, as tasks.corpus.sources.prose.num_words counts words."""
    sentences = compute.list_flatten(table.column("sentences"))
    num_characters = compute.utf8_length(sentences).to_numpy()
    by_blanks = compute.count_substring(sentences, " ").to_numpy() + 1
    is_ascii = compute.binary_length(sentences).to_numpy() == num_characters
    lengths = np.where(is_ascii | (num_characters < 16 * by_blanks), by_blanks, num_characters // 4)
    return dict(zip(*(column.tolist() for column in np.unique(lengths, return_counts=True))))


def _selected_rows(path: Path, part: SelectedFile) -> Iterator[pyarrow.Table]:
    rows = part.rows
    first = 0
    with pyarrow.parquet.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            last = first + file.metadata.row_group(group).num_rows
            wanted = rows[np.searchsorted(rows, first) : np.searchsorted(rows, last)] - first
            if len(wanted):
                table = file.read_row_group(group, columns=SCHEMA.names)
                table = table if len(wanted) == len(table) == len(np.unique(wanted)) else table.take(wanted)
                yield _cut(table, [part.cuts.get(int(row) + first, frozenset()) for row in wanted])
            first = last


def _cut(table: pyarrow.Table, cuts: Sequence[frozenset[int]]) -> pyarrow.Table:
    if not any(cuts):
        return table
    kept = [
        [sentence for place, sentence in enumerate(sentences) if place not in cut]
        for sentences, cut in zip(table.column("sentences").to_pylist(), cuts)
    ]
    place = SCHEMA.get_field_index("sentences")
    return table.set_column(place, SCHEMA.field(place), pyarrow.array(kept, SCHEMA.field(place).type))
