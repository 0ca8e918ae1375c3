"""Choosing, the sequential part: which of the cleaned documents the corpus takes, and how often.

Only facts are read here, no text: what comes first in the order of the sources wins, whoever cleaned it when. A
document goes by the first of these that holds: it is equal to an earlier one, it holds a benchmark's text (where that
is a reason to drop), it is nearly equal to an earlier one that stayed, or its source is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow

from tasks.corpus.examples import MOST_EXAMPLES
from tasks.corpus.features import read_facts, signatures_of
from tasks.corpus.filters.contamination import Contamination
from tasks.corpus.filters.contamination_matching import read_findings
from tasks.corpus.filters.dedup import Seen, share_of
from tasks.corpus.filters.near_duplicates import NearDuplicates
from tasks.corpus.filters.quality import BOILERPLATE
from tasks.corpus.filters.repetition import SentenceCounts
from tasks.corpus.partition_store import Findings, PartFile, Record, UnitStore
from tasks.corpus.partitions import Unit
from tasks.params.corpus import CorpusSettings, Source

DUPLICATE, CONTAMINATED, NEAR_DUPLICATE, WEIGHT = "duplicate", "contaminated", "near duplicate", "weight"


@dataclass(frozen=True)
class ChosenPart:
    """What the corpus takes of one file of a unit."""

    file: PartFile
    rows: np.ndarray
    """(num_rows,) int32 places of documents in the file, rising; a document of weight 2 stands there twice."""
    counts: Counter[str]
    """Documents, sentences and words, by rows."""
    cuts: dict[int, frozenset[int]] = field(default_factory=dict)
    """Row → places of sentences that are cut."""


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


@dataclass(frozen=True)
class Left:
    """A document that choosing left out, for an example."""

    reason: str
    record: Record
    row: int
    like: tuple[Record, int] | None = None
    """The earlier document that it nearly equals."""
    similarity: float = 0.0


@dataclass
class Choice:
    """What the corpus takes of all units."""

    units: list[Chosen] = field(default_factory=list)
    full: set[str] = field(default_factory=set)
    """Sources that have reached their max_documents."""
    num_taken: Counter[str] = field(default_factory=Counter)
    """Documents of each source, weights not counted."""
    left: list[Left] = field(default_factory=list)
    """The first documents that were left out for each reason."""
    contamination: list[Contamination] = field(default_factory=list)
    """Of each document of the corpus that holds something of a benchmark."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Rows of the corpus by their words."""


@dataclass
class _Taken:
    """What a unit gives until sentences are cut."""

    source: Source
    record: Record
    facts: pyarrow.Table
    rows: np.ndarray
    drops: Counter[str]
    findings: dict[int, Contamination]


def choose(settings: CorpusSettings, units: Sequence[tuple[Unit, Record, Findings | None]], store: UnitStore) -> Choice:
    """Go through units (with what was found in them, where that was looked for) in their order; those of a source that
    is full are left out."""
    choice = Choice()
    gate = _Gate(settings, units, store, choice)
    taken = []
    for unit, record, findings in units:
        if unit.source.name not in choice.full:
            taken.append(gate.take(unit.source, record, findings))
    boilerplate = _boilerplate(settings, taken)
    for one in taken:
        choice.units.append(_chosen(settings, one, boilerplate, choice))
    return choice


class _Gate:
    """Takes documents in their order; what it has taken decides about later ones."""

    def __init__(
        self,
        settings: CorpusSettings,
        units: Sequence[tuple[Unit, Record, Findings | None]],
        store: UnitStore,
        choice: Choice,
    ) -> None:
        self._settings = settings
        self._store = store
        self._choice = choice
        self._seen = Seen()
        self._near = None
        self._offered: list[tuple[int, Record, np.ndarray]] = []  # number of the first, and rows, of each unit
        self._num_offered = 0
        if settings.near_duplicates is not None:
            num_documents = sum(record["documents"] for _, record, _ in units)
            self._near = NearDuplicates(settings.near_duplicates, num_documents)

    def take(self, source: Source, record: Record, findings: Findings | None) -> _Taken:
        """What is taken of the next unit."""
        with self._store.fetch(record["facts"]) as path:
            facts = read_facts(path)
        found = read_findings(findings, self._store) if findings else {}
        reasons = np.full(len(facts), "", dtype=object)
        digests = facts.column("digest").to_numpy()
        if self._settings.drop_duplicates:
            reasons[~self._seen.add_all(digests)] = DUPLICATE
        for row, finding in found.items():
            if not reasons[row] and finding.is_reason_to_drop(self._settings.contamination):
                reasons[row] = CONTAMINATED
        left = self._drop_near(record, facts, reasons)
        rows = np.flatnonzero(reasons == "")
        room = len(rows) + 1
        if source.max_documents is not None:
            room = source.max_documents - self._choice.num_taken[source.name]
        last = len(facts)
        if len(rows) >= room:
            rows = rows[:room]
            last = int(rows[-1]) + 1
            self._choice.full.add(source.name)
        self._choice.num_taken[source.name] += len(rows)
        drops = Counter(record["drops"]) + Counter(reasons[:last].tolist())
        del drops[""]
        self._keep_examples(record, reasons[:last], left)
        return _Taken(source, record, self._small(facts, rows), rows, drops, found)

    def _drop_near(self, record: Record, facts: pyarrow.Table, reasons: np.ndarray) -> dict[int, Left]:
        """Offer what is left of a unit to the index."""
        rows = np.flatnonzero(reasons == "").astype(np.int32)
        if self._near is None or not len(rows):
            return {}
        matches = self._near.add(signatures_of(facts)[rows])
        self._offered.append((self._num_offered, record, rows))
        self._num_offered += len(rows)
        left: dict[int, Left] = {}
        for place in np.flatnonzero(matches.earlier >= 0).tolist():
            row = int(rows[place])
            reasons[row] = NEAR_DUPLICATE
            if len(left) < MOST_EXAMPLES:
                like = self._find(int(matches.earlier[place]))
                left[row] = Left(NEAR_DUPLICATE, record, row, like, float(matches.similarity[place]))
        return left

    def _find(self, number: int) -> tuple[Record, int]:
        """The unit and the row of what was offered as the `number`-th."""
        first, record, rows = next(entry for entry in reversed(self._offered) if entry[0] <= number)
        return record, int(rows[number - first])

    def _keep_examples(self, record: Record, reasons: np.ndarray, left: dict[int, Left]) -> None:
        kept = Counter(one.reason for one in self._choice.left)
        for row in np.flatnonzero(reasons != "").tolist():
            if kept[reasons[row]] < MOST_EXAMPLES:
                kept[reasons[row]] += 1
                self._choice.left.append(left.get(row) or Left(reasons[row], record, row))

    def _small(self, facts: pyarrow.Table, rows: np.ndarray) -> pyarrow.Table:
        """What is still needed of the facts."""
        names = ["digest", "num_words", "num_sentences"]
        if self._settings.gates.max_documents_with_sentence is not None:
            names += ["sentence_digests", "sentence_words"]
        return facts.select(names).take(rows)


def _boilerplate(settings: CorpusSettings, taken: Sequence[_Taken]) -> SentenceCounts | None:
    """The sentences that stand in too many of the documents that are taken; needs 12 bytes for each sentence."""
    most = settings.gates.max_documents_with_sentence
    if most is None:
        return None
    counts = []
    for one in taken:
        column = one.facts.column("sentence_digests")
        counts.append(SentenceCounts.of(row.values.to_numpy() for row in column))
    return SentenceCounts.merged(counts, min_documents=most + 1)


def _chosen(settings: CorpusSettings, one: _Taken, boilerplate: SentenceCounts | None, choice: Choice) -> Chosen:
    """What the corpus takes of a unit: sentences cut, weights applied."""
    num_words, num_sentences = (one.facts.column(name).to_numpy().copy() for name in ("num_words", "num_sentences"))
    drops, keep = one.drops, np.ones(len(one.rows), dtype=bool)
    cuts: dict[int, frozenset[int]] = {}
    for place in range(len(one.rows)) if boilerplate is not None and len(boilerplate.digests) else []:
        cut = boilerplate.holds(one.facts.column("sentence_digests")[place].values.to_numpy())  # type: ignore[union-attr]
        if not cut.any():
            continue
        words = one.facts.column("sentence_words")[place].values.to_numpy()
        num_words[place], num_sentences[place] = words[~cut].sum(), (~cut).sum()
        cuts[int(one.rows[place])] = frozenset(np.flatnonzero(cut).tolist())
        drops[BOILERPLATE] += int(cut.sum())
        short = num_words[place] < settings.min_words
        if short or num_sentences[place] < settings.min_sentences:
            keep[place] = False
            drops["too few words" if short else "too few sentences"] += 1
    copies = _copies(one.source, one.facts.column("digest").to_numpy())
    drops[WEIGHT] += int((copies[keep] == 0).sum())
    copies[~keep] = 0
    parts = list(_parts(one, np.repeat(np.arange(len(one.rows)), copies), num_words, num_sentences, cuts))
    choice.lengths.update(np.repeat(num_words, copies).tolist())
    rows = one.rows[copies > 0].tolist()
    choice.contamination += [one.findings[row] for row in rows if row in one.findings]
    return Chosen(one.record, parts, sum((part.counts for part in parts), Counter[str]()), +drops)


def _parts(
    one: _Taken,
    places: np.ndarray,
    num_words: np.ndarray,
    num_sentences: np.ndarray,
    cuts: dict[int, frozenset[int]],
) -> Iterator[ChosenPart]:
    """The rows of a unit by its files; `places` are places in the unit's rows, rising."""
    rows = one.rows[places]
    first = 0
    for file in one.record["parts"]:
        last = first + file["documents"]
        own = slice(*np.searchsorted(rows, [first, last]).tolist())
        if len(rows[own]):
            counts = Counter(
                documents=len(rows[own]),
                sentences=int(num_sentences[places[own]].sum(dtype=np.int64)),
                words=int(num_words[places[own]].sum(dtype=np.int64)),
            )
            own_cuts = {row - first: cut for row, cut in cuts.items() if first <= row < last}
            yield ChosenPart(file, (rows[own] - first).astype(np.int32), counts, own_cuts)
        first = last


def _copies(source: Source, digests: np.ndarray) -> np.ndarray:
    """How often each document stands in the corpus."""
    copies = np.full(len(digests), int(source.weight))
    if source.weight % 1:
        copies += np.array([share_of(digest, "weight") < source.weight % 1 for digest in digests.tolist()], dtype=int)
    return copies
