"""Compare current partitions with the published corpus, without processing any text.

A partition's key depends on everything that determines its content. A key that is missing from the published index
therefore belongs to a partition that is new, or whose input or cleaning settings changed. Its number of documents is
estimated from its size until the partition is cleaned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from model.common.errors import UserError
from model.common.files import read_json
from tasks.corpus.partitions import list_partitions
from tasks.corpus.publishing import INDEX_NAME
from tasks.params.corpus import CorpusSettings

State = Literal["new", "changed", "unchanged", "removed"]
_BYTES_PER_DOCUMENT = 3000.0  # if nothing has been published yet: about the size of a Wikipedia article


@dataclass(frozen=True)
class PartitionChange:
    """A current or removed partition, compared with the published corpus."""

    state: State
    source: str
    label: str
    input_bytes: int
    documents: float
    """Number of documents; an estimate if the partition has not been cleaned yet."""


def since(
    settings: CorpusSettings, data_dir: Path, corpus_dir: Path, cache: Path, num_threads: int
) -> list[PartitionChange]:
    """List the changes that `cloze corpus` would process: current partitions in order, then removed ones.

    Raises:
        UserError: the index of the published corpus is damaged, or a source is missing.
    """
    index = _read_index(corpus_dir)
    partitions = list_partitions(settings, data_dir, cache, num_threads)
    published = {partition["key"]: partition for partition in index["units"]}
    labels = {partition["label"] for partition in published.values()}
    num_bytes: Counter[str] = Counter()  # by source; "" holds the total
    num_documents: Counter[str] = Counter()
    for partition in published.values():
        for name in (partition["source"], ""):
            num_bytes[name] += partition["input_bytes"]
            num_documents[name] += partition["documents"]
    remaining = Counter(partition["source"] for partition in published.values())
    changes = []
    for partition in partitions:
        source = partition.source.name
        remaining[source] -= 1
        if partition.source.max_documents and source in index["full"] and remaining[source] < 0:
            continue  # the source had already reached max_documents
        before = published.get(partition.key)
        state: State = "unchanged" if before else "changed" if partition.label in labels else "new"
        known = next((name for name in (source, "") if num_documents[name]), None)
        rate = _BYTES_PER_DOCUMENT if known is None else num_bytes[known] / num_documents[known]
        documents = before["documents"] if before else partition.num_bytes / rate
        changes.append(PartitionChange(state, source, partition.label, partition.num_bytes, documents))
    now = {partition.label for partition in partitions}
    now |= {published[partition.key]["label"] for partition in partitions if partition.key in published}
    return changes + [
        PartitionChange("removed", *(partition[name] for name in ("source", "label", "input_bytes", "documents")))
        for partition in published.values()
        if partition["label"] not in now
    ]


def changed_share(changes: Sequence[PartitionChange]) -> float:
    """Return the share (0 to 1) of all documents, current and removed, in new, changed or removed partitions."""
    total = sum(change.documents for change in changes)
    return sum(change.documents for change in changes if change.state != "unchanged") / total if total else 0.0


def changed_share_of(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Return the `changed_share` between two published indexes, computed from actual document counts."""
    old, new = ({partition["key"]: partition for partition in index["units"]} for index in (before, after))
    labels = {partition["label"] for partition in new.values()}
    changed = sum(partition["documents"] for key, partition in new.items() if key not in old)
    for key, partition in old.items():
        if key not in new and partition["label"] not in labels:
            changed += partition["documents"]
    total = changed + sum(partition["documents"] for key, partition in new.items() if key in old)
    return changed / total if total else 0.0


def table(changes: Sequence[PartitionChange], most_rows: int = 40) -> Iterator[str]:
    shown = [change for change in changes if change.state != "unchanged"]
    for change in shown[:most_rows]:
        yield f"{change.state:<10} {change.input_bytes / 1e6:>10,.1f} MB {change.documents:>12,.0f}  {change.label}"
    if len(shown) > most_rows:
        yield f"... and {len(shown) - most_rows:,} more"
    states = get_args(State)
    yield f"{'source':<20}" + "".join(f"{f'{state} units':>18}" for state in states) + f"{'changed share':>16}"
    for source in dict.fromkeys(change.source for change in changes):
        own = [change for change in changes if change.source == source]
        counts = Counter(change.state for change in own)
        yield f"{source:<20}" + "".join(f"{counts[state]:>18,}" for state in states) + f"{changed_share(own):>16.1%}"
    yield f"{changed_share(changes):.1%} of the documents are in partitions that are new, changed or removed"


def _read_index(corpus_dir: Path) -> dict[str, Any]:
    path = corpus_dir / INDEX_NAME
    if not path.is_file():
        return {"units": [], "full": []}
    try:
        index: dict[str, Any] = read_json(path)
        index["units"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not a readable corpus index; run the corpus stage again") from None
    return index
