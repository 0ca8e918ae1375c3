"""What has changed since a corpus was published: by units, without doing any work on text.

A unit's key names all that decides what comes of it, so a key that the published index does not have is a unit that is
new, or whose input or cleaning was changed. How many documents it has is known when it was cleaned; until then it is
estimated from its bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.common.errors import UserError
from model.common.files import read_json
from tasks.corpus.partitions import Unit, list_units
from tasks.corpus.publishing import INDEX_NAME
from tasks.params.corpus import CorpusSettings

State = Literal["new", "changed", "unchanged", "removed"]
_BYTES_PER_DOCUMENT = 3000.0  # where nothing of a source was published yet: about a Wikipedia article


@dataclass(frozen=True)
class UnitChange:
    """A unit as it is now beside what was published of it."""

    state: State
    source: str
    label: str
    input_bytes: int
    documents: float
    """That come of it, or came of it where it is removed; an estimate where it was not cleaned yet."""


def changes_since(index: dict[str, Any] | None, units: Sequence[Unit]) -> list[UnitChange]:
    """The units of now in their order, then those that are removed; all are new where nothing was published.

    Args:
        index: the content of a published index.json.
        units: tasks.corpus.partitions.list_units of now.
    """
    published = index["units"] if index else []
    keys = {unit["key"]: unit for unit in published}
    labels = {unit["label"] for unit in published}
    rates = _bytes_per_document(published)
    changes = []
    full = set(index["full"]) if index else set()
    room = Counter(unit["source"] for unit in published)
    for unit in units:
        room[unit.source.name] -= 1
        if unit.source.max_documents and unit.source.name in full and room[unit.source.name] < 0:
            continue  # the source was full before it
        before = keys.get(unit.key)
        state: State = "unchanged" if before else "changed" if unit.label in labels else "new"
        rate = rates.get(unit.source.name) or rates.get("") or _BYTES_PER_DOCUMENT
        documents = before["documents"] if before else unit.num_bytes / rate
        changes.append(UnitChange(state, unit.source.name, unit.label, unit.num_bytes, documents))
    now = {unit.label for unit in units} | {keys[unit.key]["label"] for unit in units if unit.key in keys}
    for unit in published:
        if unit["label"] not in now:
            changes.append(UnitChange("removed", unit["source"], unit["label"], unit["input_bytes"], unit["documents"]))
    return changes


def changed_share(changes: Sequence[UnitChange]) -> float:
    """Which share of the documents, of now and removed ones, is in units that are new, changed or removed (0 to 1)."""
    total = sum(change.documents for change in changes)
    return sum(change.documents for change in changes if change.state != "unchanged") / total if total else 0.0


def changed_share_of(before: dict[str, Any], after: dict[str, Any]) -> float:
    """The same of two published indices, in documents that were counted."""
    counts = [{unit["key"]: unit["documents"] for unit in index["units"]} for index in (before, after)]
    labels = [{unit["label"]: unit["key"] for unit in index["units"]} for index in (before, after)]
    replaced = {key for label, key in labels[0].items() if label in labels[1] and key not in counts[1]}
    other = sum(documents for key, documents in counts[1].items() if key not in counts[0])
    other += sum(documents for key, documents in counts[0].items() if key not in counts[1] and key not in replaced)
    total = other + sum(documents for key, documents in counts[1].items() if key in counts[0])
    return other / total if total else 0.0


def read_index(corpus_dir: Path) -> dict[str, Any] | None:
    """The index of a published corpus; None where there is none.

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
        raise UserError(f"{path}: no readable index of a corpus; run the corpus stage again") from None
    return index


def since(
    settings: CorpusSettings, data_dir: Path, corpus_dir: Path, cache: Path, num_threads: int
) -> list[UnitChange]:
    """What `cloze corpus` would find changed."""
    return changes_since(read_index(corpus_dir), list_units(settings, data_dir, cache, num_threads))


def table(changes: Sequence[UnitChange], most_rows: int = 40) -> Iterator[str]:
    """Lines for a terminal: units that are not unchanged, then a line of sums for each source, then the share."""
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
    yield f"{changed_share(changes):.1%} of the documents are in units that are new, changed or removed"


def _bytes_per_document(published: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Input bytes for a document of each source, and of all under ""."""
    sizes: Counter[str] = Counter()
    documents: Counter[str] = Counter()
    for unit in published:
        for name in (unit["source"], ""):
            sizes[name] += unit["input_bytes"]
            documents[name] += unit["documents"]
    return {name: sizes[name] / documents[name] for name in sizes if documents[name]}
