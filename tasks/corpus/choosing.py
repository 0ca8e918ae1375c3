"""Choosing, the sequential part: which of the cleaned documents the corpus takes, and how often.

Only facts are read here, no text: what comes first in the order of the sources wins, whoever cleaned it when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow

from tasks.corpus.dedup import Seen, share_of
from tasks.corpus.facts import read_facts
from tasks.corpus.settings import CorpusSettings, Source
from tasks.corpus.unit_store import PartFile, Record, UnitStore
from tasks.corpus.units import Unit


@dataclass(frozen=True)
class ChosenPart:
    """What the corpus takes of one file of a unit."""

    file: PartFile
    rows: np.ndarray
    """(num_rows,) int32 places of documents in the file, rising; a document of weight 2 stands there twice."""
    counts: Counter[str]
    """Documents, sentences and words, by rows."""


@dataclass(frozen=True)
class Chosen:
    """What the corpus takes of one unit."""

    record: Record
    parts: list[ChosenPart]
    """Files of which nothing is taken are left out."""
    counts: Counter[str]
    """Of all parts."""
    drops: Counter[str]
    """By reason, of cleaning and choosing."""


@dataclass
class Choice:
    """What the corpus takes of all units."""

    units: list[Chosen] = field(default_factory=list)
    full: set[str] = field(default_factory=set)
    """Sources that have reached their max_documents."""
    num_taken: Counter[str] = field(default_factory=Counter)
    """Documents of each source, weights not counted."""


def choose(settings: CorpusSettings, units: Iterable[tuple[Unit, Record]], store: UnitStore) -> Choice:
    """Go through units in their order; those of a source that is full are left out."""
    seen = Seen()
    choice = Choice()
    for unit, record in units:
        source = unit.source
        if source.name in choice.full:
            continue
        with store.fetch(record["facts"]) as path:
            facts = read_facts(path)
        digests = facts.column("digest").to_numpy()
        drops = Counter(record["drops"])
        keep = seen.add_all(digests) if settings.drop_duplicates else np.ones(len(digests), dtype=bool)
        # Near duplicates are decided here: of the rows that are left, in this order, by further columns of facts.
        rows = np.flatnonzero(keep)
        if source.max_documents is not None:
            room = source.max_documents - choice.num_taken[source.name]
            if len(rows) >= room:
                rows = rows[:room]
                digests = digests[: rows[-1] + 1]
                choice.full.add(source.name)
        drops["duplicate"] += len(digests) - int(keep[: len(digests)].sum())
        choice.num_taken[source.name] += len(rows)
        copies = _copies(source, digests[rows])
        drops["weight"] += int((copies == 0).sum())
        parts = list(_parts(record, np.repeat(rows, copies), facts))
        counts = sum((part.counts for part in parts), Counter[str]())
        choice.units.append(Chosen(record, parts, counts, +drops))
    return choice


def _parts(record: Record, rows: np.ndarray, facts: pyarrow.Table) -> Iterator[ChosenPart]:
    """The rows of a unit by its files."""
    num_sentences, num_words = (facts.column(name).to_numpy() for name in ("num_sentences", "num_words"))
    first = 0
    for file in record["parts"]:
        last = first + file["documents"]
        own = rows[np.searchsorted(rows, first) : np.searchsorted(rows, last)]
        if len(own):
            counts = Counter(
                documents=len(own),
                sentences=int(num_sentences[own].sum(dtype=np.int64)),
                words=int(num_words[own].sum(dtype=np.int64)),
            )
            yield ChosenPart(file, (own - first).astype(np.int32), counts)
        first = last


def _copies(source: Source, digests: np.ndarray) -> np.ndarray:
    """How often each document stands in the corpus."""
    copies = np.full(len(digests), int(source.weight))
    if source.weight % 1:
        copies += np.array([share_of(digest, "weight") < source.weight % 1 for digest in digests.tolist()], dtype=int)
    return copies
