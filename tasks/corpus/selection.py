"""Selection, the sequential step: choose the documents of the corpus and their number of copies.

Only features are read here, no text: what comes first in the order of the sources wins, whoever cleaned it when. A
document goes by the first of these that holds: it is equal to an earlier one, it holds a benchmark's text (where that
is a reason to drop), it is nearly equal to an earlier one that stayed, or its source is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow

from tasks.corpus.document_features import read_features, signatures_of
from tasks.corpus.drop_examples import MOST_EXAMPLES
from tasks.corpus.filters.contamination import Contamination
from tasks.corpus.filters.contamination_matching import read_matches
from tasks.corpus.filters.dedup import SeenDigests, share_of
from tasks.corpus.filters.near_duplicates import NearDuplicates
from tasks.corpus.filters.quality import BOILERPLATE
from tasks.corpus.filters.repetition import SentenceCounts
from tasks.corpus.partition_store import MatchRecord, PartFile, PartitionRecord, PartitionStore
from tasks.corpus.partitions import Partition
from tasks.params.corpus import CorpusSettings, Source

DUPLICATE, CONTAMINATED, NEAR_DUPLICATE, WEIGHT = "duplicate", "contaminated", "near duplicate", "weight"


@dataclass(frozen=True)
class SelectedFile:
    """The documents selected from one file of a partition."""

    file: PartFile
    rows: np.ndarray
    """(num_rows,) int32 rows of the documents in the file, ascending; a document of weight 2 appears twice."""
    counts: Counter[str]
    """Documents, sentences and words, by rows."""
    cuts: dict[int, frozenset[int]] = field(default_factory=dict)
    """Row → indices of sentences to remove."""


@dataclass(frozen=True)
class SelectedPartition:
    """The documents selected from one partition."""

    record: PartitionRecord
    parts: list[SelectedFile]
    """Files without selected documents are omitted."""
    counts: Counter[str]
    """Documents, sentences and words of all parts."""
    drops: Counter[str]
    """Dropped documents by reason, in cleaning and selection."""


@dataclass(frozen=True)
class DroppedDocument:
    """A document that selection dropped, kept as an example."""

    reason: str
    record: PartitionRecord
    row: int
    like: tuple[PartitionRecord, int] | None = None
    """The earlier document that it nearly duplicates."""
    similarity: float = 0.0


@dataclass
class Selection:
    """Documents selected from each partition, with drop counts."""

    partitions: list[SelectedPartition] = field(default_factory=list)
    full: set[str] = field(default_factory=set)
    """Sources that reached their max_documents."""
    num_taken: Counter[str] = field(default_factory=Counter)
    """Documents of each source, weights not counted."""
    left: list[DroppedDocument] = field(default_factory=list)
    """The first documents that were dropped for each reason."""
    contamination: list[Contamination] = field(default_factory=list)
    """Matches of each document of the corpus that holds benchmark text."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Number of words → rows of the corpus."""


@dataclass
class _CandidatePartition:
    """The selected rows of a partition before boilerplate sentences are removed."""

    source: Source
    record: PartitionRecord
    features: pyarrow.Table
    rows: np.ndarray
    drops: Counter[str]
    findings: dict[int, Contamination]


def select_documents(
    settings: CorpusSettings,
    partitions: Sequence[tuple[Partition, PartitionRecord, MatchRecord | None]],
    store: PartitionStore,
) -> Selection:
    """Select documents from partitions in order; partitions of a source that is full are skipped.

    Args:
        settings: the section `corpus` of params.yaml.
        partitions: each with its record and, if contamination was matched, its matches.
        store: holds the files of the partitions.
    """
    selection = Selection()
    gate = _Selector(settings, partitions, store, selection)
    taken = []
    for partition, record, findings in partitions:
        if partition.source.name not in selection.full:
            taken.append(gate.take(partition.source, record, findings))
    boilerplate = _boilerplate(settings, taken)
    for candidate in taken:
        selection.partitions.append(_select(settings, candidate, boilerplate, selection))
    return selection


class _Selector:
    """Selects documents in order; the selected ones decide about later ones."""

    def __init__(
        self,
        settings: CorpusSettings,
        partitions: Sequence[tuple[Partition, PartitionRecord, MatchRecord | None]],
        store: PartitionStore,
        selection: Selection,
    ) -> None:
        self._settings = settings
        self._store = store
        self._selection = selection
        self._seen = SeenDigests()
        self._near = None
        self._offered: list[
            tuple[int, PartitionRecord, np.ndarray]
        ] = []  # number of the first, and rows, of each partition
        self._num_offered = 0
        if settings.near_duplicates is not None:
            num_documents = sum(record["documents"] for _, record, _ in partitions)
            self._near = NearDuplicates(settings.near_duplicates, num_documents)

    def take(self, source: Source, record: PartitionRecord, findings: MatchRecord | None) -> _CandidatePartition:
        """Select documents from the next partition."""
        with self._store.fetch(record["facts"]) as path:
            features = read_features(path)
        found = read_matches(findings, self._store) if findings else {}
        reasons = np.full(len(features), "", dtype=object)
        digests = features.column("digest").to_numpy()
        if self._settings.drop_duplicates:
            reasons[~self._seen.add_all(digests)] = DUPLICATE
        for row, finding in found.items():
            if not reasons[row] and finding.is_reason_to_drop(self._settings.contamination):
                reasons[row] = CONTAMINATED
        left = self._drop_near(record, features, reasons)
        rows = np.flatnonzero(reasons == "")
        remaining = len(rows) + 1
        if source.max_documents is not None:
            remaining = source.max_documents - self._selection.num_taken[source.name]
        last = len(features)
        if len(rows) >= remaining:
            rows = rows[:remaining]
            last = int(rows[-1]) + 1
            self._selection.full.add(source.name)
        self._selection.num_taken[source.name] += len(rows)
        drops = Counter(record["drops"]) + Counter(reasons[:last].tolist())
        del drops[""]
        self._keep_examples(record, reasons[:last], left)
        return _CandidatePartition(source, record, self._small(features, rows), rows, drops, found)

    def _drop_near(
        self, record: PartitionRecord, features: pyarrow.Table, reasons: np.ndarray
    ) -> dict[int, DroppedDocument]:
        """Offer what is left of a partition to the index."""
        rows = np.flatnonzero(reasons == "").astype(np.int32)
        if self._near is None or not len(rows):
            return {}
        matches = self._near.add(signatures_of(features)[rows])
        self._offered.append((self._num_offered, record, rows))
        self._num_offered += len(rows)
        left: dict[int, DroppedDocument] = {}
        for place in np.flatnonzero(matches.earlier >= 0).tolist():
            row = int(rows[place])
            reasons[row] = NEAR_DUPLICATE
            if len(left) < MOST_EXAMPLES:
                like = self._find(int(matches.earlier[place]))
                left[row] = DroppedDocument(NEAR_DUPLICATE, record, row, like, float(matches.similarity[place]))
        return left

    def _find(self, number: int) -> tuple[PartitionRecord, int]:
        """Partition and row of the `number`-th document that was offered."""
        first, record, rows = next(entry for entry in reversed(self._offered) if entry[0] <= number)
        return record, int(rows[number - first])

    def _keep_examples(self, record: PartitionRecord, reasons: np.ndarray, left: dict[int, DroppedDocument]) -> None:
        kept = Counter(dropped.reason for dropped in self._selection.left)
        for row in np.flatnonzero(reasons != "").tolist():
            if kept[reasons[row]] < MOST_EXAMPLES:
                kept[reasons[row]] += 1
                self._selection.left.append(left.get(row) or DroppedDocument(reasons[row], record, row))

    def _small(self, features: pyarrow.Table, rows: np.ndarray) -> pyarrow.Table:
        """The rows and columns of the features that later steps need."""
        names = ["digest", "num_words", "num_sentences"]
        if self._settings.gates.max_documents_with_sentence is not None:
            names += ["sentence_digests", "sentence_words"]
        return features.select(names).take(rows)


def _boilerplate(settings: CorpusSettings, taken: Sequence[_CandidatePartition]) -> SentenceCounts | None:
    """Sentences that occur in too many selected documents; takes 12 bytes per sentence."""
    most = settings.gates.max_documents_with_sentence
    if most is None:
        return None
    counts = []
    for candidate in taken:
        column = candidate.features.column("sentence_digests")
        counts.append(SentenceCounts.of(row.values.to_numpy() for row in column))
    return SentenceCounts.merged(counts, min_documents=most + 1)


def _select(
    settings: CorpusSettings, candidate: _CandidatePartition, boilerplate: SentenceCounts | None, selection: Selection
) -> SelectedPartition:
    """Remove boilerplate sentences and apply weights."""
    num_words, num_sentences = (
        candidate.features.column(name).to_numpy().copy() for name in ("num_words", "num_sentences")
    )
    drops, keep = candidate.drops, np.ones(len(candidate.rows), dtype=bool)
    cuts: dict[int, frozenset[int]] = {}
    for place in range(len(candidate.rows)) if boilerplate is not None and len(boilerplate.digests) else []:
        cut = boilerplate.holds(candidate.features.column("sentence_digests")[place].values.to_numpy())  # type: ignore[union-attr]
        if not cut.any():
            continue
        words = candidate.features.column("sentence_words")[place].values.to_numpy()
        num_words[place], num_sentences[place] = words[~cut].sum(), (~cut).sum()
        cuts[int(candidate.rows[place])] = frozenset(np.flatnonzero(cut).tolist())
        drops[BOILERPLATE] += int(cut.sum())
        short = num_words[place] < settings.min_words
        if short or num_sentences[place] < settings.min_sentences:
            keep[place] = False
            drops["too few words" if short else "too few sentences"] += 1
    copies = _copies(candidate.source, candidate.features.column("digest").to_numpy())
    drops[WEIGHT] += int((copies[keep] == 0).sum())
    copies[~keep] = 0
    parts = list(_parts(candidate, np.repeat(np.arange(len(candidate.rows)), copies), num_words, num_sentences, cuts))
    selection.lengths.update(np.repeat(num_words, copies).tolist())
    rows = candidate.rows[copies > 0].tolist()
    selection.contamination += [candidate.findings[row] for row in rows if row in candidate.findings]
    return SelectedPartition(candidate.record, parts, sum((part.counts for part in parts), Counter[str]()), +drops)


def _parts(
    candidate: _CandidatePartition,
    places: np.ndarray,
    num_words: np.ndarray,
    num_sentences: np.ndarray,
    cuts: dict[int, frozenset[int]],
) -> Iterator[SelectedFile]:
    """The rows of a partition by its files; `places` are places in the unit's rows, rising."""
    rows = candidate.rows[places]
    first = 0
    for file in candidate.record["parts"]:
        last = first + file["documents"]
        own = slice(*np.searchsorted(rows, [first, last]).tolist())
        if len(rows[own]):
            counts = Counter(
                documents=len(rows[own]),
                sentences=int(num_sentences[places[own]].sum(dtype=np.int64)),
                words=int(num_words[places[own]].sum(dtype=np.int64)),
            )
            own_cuts = {row - first: cut for row, cut in cuts.items() if first <= row < last}
            yield SelectedFile(file, (rows[own] - first).astype(np.int32), counts, own_cuts)
        first = last


def _copies(source: Source, digests: np.ndarray) -> np.ndarray:
    """Number of copies of each document in the corpus."""
    copies = np.full(len(digests), int(source.weight))
    if source.weight % 1:
        copies += np.array([share_of(digest, "weight") < source.weight % 1 for digest in digests.tolist()], dtype=int)
    return copies
