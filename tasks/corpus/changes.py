"""Changes since a corpus was published, by partition, without processing any text.

A partition's key depends on everything that decides its content, so a key that the published index lacks belongs to a
partition that is new, or whose input or cleaning changed. The number of its documents is estimated from its size until
it is cleaned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.common.errors import UserError
from model.common.files import read_json
from tasks.corpus.partitions import Partition, list_partitions
from tasks.corpus.publishing import INDEX_NAME
from tasks.params.corpus import CorpusSettings

State = Literal["new", "changed", "unchanged", "removed"]
_BYTES_PER_DOCUMENT = 3000.0  # where nothing of a source was published yet: about a Wikipedia article


@dataclass(frozen=True)
class PartitionChange:
    """A current or removed partition, compared with the published corpus."""

    state: State
    source: str
    label: str
    input_bytes: int
    documents: float
    """Number of its documents; an estimate if the partition is not cleaned yet."""


def changes_since(index: dict[str, Any] | None, partitions: Sequence[Partition]) -> list[PartitionChange]:
    """Current partitions in order, then removed ones; all are new if nothing was published.

    Args:
        index: the content of a published index.json.
        partitions: tasks.corpus.partitions.list_partitions of now.
    """
    published = index["units"] if index else []
    keys = {partition["key"]: partition for partition in published}
    labels = {partition["label"] for partition in published}
    rates = _bytes_per_document(published)
    changes = []
    full = set(index["full"]) if index else set()
    remaining = Counter(partition["source"] for partition in published)
    for partition in partitions:
        remaining[partition.source.name] -= 1
        if partition.source.max_documents and partition.source.name in full and remaining[partition.source.name] < 0:
            continue  # the source was full before it
        before = keys.get(partition.key)
        state: State = "unchanged" if before else "changed" if partition.label in labels else "new"
        rate = rates.get(partition.source.name) or rates.get("") or _BYTES_PER_DOCUMENT
        documents = before["documents"] if before else partition.num_bytes / rate
        changes.append(PartitionChange(state, partition.source.name, partition.label, partition.num_bytes, documents))
    now = {partition.label for partition in partitions} | {
        keys[partition.key]["label"] for partition in partitions if partition.key in keys
    }
    for partition in published:
        if partition["label"] not in now:
            changes.append(
                PartitionChange(
                    "removed", partition["source"], partition["label"], partition["input_bytes"], partition["documents"]
                )
            )
    return changes


def changed_share(changes: Sequence[PartitionChange]) -> float:
    """Share of the documents (current and removed) in new, changed or removed partitions, 0 to 1."""
    total = sum(change.documents for change in changes)
    return sum(change.documents for change in changes if change.state != "unchanged") / total if total else 0.0


def changed_share_of(before: dict[str, Any], after: dict[str, Any]) -> float:
    """`changed_share` between two published indexes, from counted documents."""
    counts = [{partition["key"]: partition["documents"] for partition in index["units"]} for index in (before, after)]
    labels = [{partition["label"]: partition["key"] for partition in index["units"]} for index in (before, after)]
    replaced = {key for label, key in labels[0].items() if label in labels[1] and key not in counts[1]}
    other = sum(documents for key, documents in counts[1].items() if key not in counts[0])
    other += sum(documents for key, documents in counts[0].items() if key not in counts[1] and key not in replaced)
    total = other + sum(documents for key, documents in counts[1].items() if key in counts[0])
    return other / total if total else 0.0


def read_index(corpus_dir: Path) -> dict[str, Any] | None:
    """The index of a published corpus, or None.

    Raises:
        UserError: it is damaged.
    """
    path = corpus_dir / INDEX_NAME
    if not path.is_file():
        return None
    try:
        index: dict[str, Any] = read_json(path)
        index["units"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not a readable corpus index; run the corpus stage again") from None
    return index


def since(
    settings: CorpusSettings, data_dir: Path, corpus_dir: Path, cache: Path, num_threads: int
) -> list[PartitionChange]:
    """Changes that `cloze corpus` would process."""
    return changes_since(read_index(corpus_dir), list_partitions(settings, data_dir, cache, num_threads))


def table(changes: Sequence[PartitionChange], most_rows: int = 40) -> Iterator[str]:
    """Lines for a terminal: changed partitions, totals of each source, and the changed share."""
    shown = [change for change in changes if change.state != "unchanged"]
    for change in shown[:most_rows]:
        yield f"{change.state:<10} {change.input_bytes / 1e6:>10,.1f} MB {change.documents:>12,.0f}  {change.label}"
    if len(shown) > most_rows:
        yield f"... and {len(shown) - most_rows:,} more"
    states: tuple[State, ...] = ("new", "changed", "unchanged", "removed")
    yield f"{'source':<20}" + "".join(f"{f'{state} units':>18}" for state in states) + f"{'changed share':>16}"
    for source in dict.fromkeys(change.source for change in changes):
        own = [change for change in changes if change.source == source]
        counts = Counter(change.state for change in own)
        yield f"{source:<20}" + "".join(f"{counts[state]:>18,}" for state in states) + f"{changed_share(own):>16.1%}"
    yield f"{changed_share(changes):.1%} of the documents are in partitions that are new, changed or removed"


def _bytes_per_document(published: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Input bytes for a document of each source, and of all under ""."""
    sizes: Counter[str] = Counter()
    documents: Counter[str] = Counter()
    for partition in published:
        for name in (partition["source"], ""):
            sizes[name] += partition["input_bytes"]
            documents[name] += partition["documents"]
    return {name: sizes[name] / documents[name] for name in sizes if documents[name]}
