"""Selection, the sequential step, chooses the documents of the corpus and their number of copies.

Selection reads only features, no text, and processes documents in the order of the sources, regardless of when they
were cleaned. A document is dropped for the first reason that applies: it duplicates an earlier document, it contains
benchmark text (if that is a reason to drop), it nearly duplicates a kept document, or its source is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow

from tasks.corpus.cleaning import MOST_EXAMPLES, read_features
from tasks.corpus.filters.contamination import Contamination, read_matches
from tasks.corpus.filters.duplicates import NearDuplicates, SeenDigests, share_of
from tasks.corpus.filters.quality import BOILERPLATE, SentenceCounts
from tasks.corpus.partition_store import MatchRecord, PartFile, PartitionRecord, PartitionStore
from tasks.corpus.partitions import Partition
from tasks.params.corpus import CorpusSettings, Source

DUPLICATE, CONTAMINATED, NEAR_DUPLICATE, WEIGHT = "duplicate", "contaminated", "near duplicate", "weight"


@dataclass(frozen=True)
class SelectedFile:
    file: PartFile
    rows: np.ndarray
    """(num_rows,) int32 row numbers in the file, ascending; a document with weight 2 appears twice."""
    counts: Counter[str]
    """Number of documents, sentences and words; each copy counts."""
    cuts: dict[int, frozenset[int]] = field(default_factory=dict)
    """Row → indices of sentences to remove."""


@dataclass(frozen=True)
class SelectedPartition:
    record: PartitionRecord
    parts: list[SelectedFile]
    """Files without selected documents are omitted."""
    counts: Counter[str]
    """Number of documents, sentences and words in all parts."""
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
    """The documents selected from each partition, with drop counts."""

    partitions: list[SelectedPartition] = field(default_factory=list)
    full: set[str] = field(default_factory=set)
    """Sources that reached their max_documents."""
    left: list[DroppedDocument] = field(default_factory=list)
    """The first documents dropped for each reason."""
    contamination: list[Contamination] = field(default_factory=list)
    """Matches of each document in the corpus that contains benchmark text."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Number of corpus rows by document length in words."""


@dataclass
class _CandidatePartition:
    """The selected rows of a partition before boilerplate sentences are removed."""

    source: Source
    record: PartitionRecord
    features: pyarrow.Table
    rows: np.ndarray
    drops: Counter[str]
    matches: dict[int, Contamination]


def select_documents(
    settings: CorpusSettings,
    partitions: Sequence[tuple[Partition, PartitionRecord, MatchRecord | None]],
    store: PartitionStore,
) -> Selection:
    """Select documents from partitions in order, and skip the partitions of full sources."""
    selection = Selection()
    selector = _Selector(settings, sum(record["documents"] for _, record, _ in partitions), store, selection)
    taken = []
    for partition, record, matches in partitions:
        if partition.source.name not in selection.full:
            taken.append(selector.take(partition.source, record, matches))
    most_documents = settings.gates.max_documents_with_sentence
    counts = []
    if most_documents is not None:
        columns = [candidate.features.column("sentence_digests") for candidate in taken]
        counts = [SentenceCounts.of(row.values.to_numpy() for row in column) for column in columns]
    boilerplate = SentenceCounts.merged(counts, min_documents=(most_documents or 0) + 1)
    selection.partitions = [_select(settings, candidate, boilerplate, selection) for candidate in taken]
    return selection


class _Selector:
    def __init__(
        self, settings: CorpusSettings, num_documents: int, store: PartitionStore, selection: Selection
    ) -> None:
        self._settings = settings
        self._store = store
        self._selection = selection
        self._seen = SeenDigests()
        self._near = NearDuplicates(settings.near_duplicates, num_documents) if settings.near_duplicates else None
        self._offered: list[tuple[int, PartitionRecord, np.ndarray]] = []  # (first number, record, rows)
        self._num_offered = 0
        self._num_taken: Counter[str] = Counter()  # documents by source, without copies
        self._columns = ["digest", "num_words", "num_sentences"]
        if settings.gates.max_documents_with_sentence is not None:
            self._columns += ["sentence_digests", "sentence_words"]

    def take(self, source: Source, record: PartitionRecord, matches: MatchRecord | None) -> _CandidatePartition:
        with self._store.fetch(record["facts"]) as path:
            features = read_features(path)
        found = read_matches(matches, self._store) if matches else {}
        reasons = np.full(len(features), "", dtype=object)
        if self._settings.drop_duplicates:
            reasons[~self._seen.add_all(features.column("digest").to_numpy())] = DUPLICATE
        for row, match in found.items():
            if not reasons[row] and match.is_reason_to_drop(self._settings.contamination):
                reasons[row] = CONTAMINATED
        near = self._drop_near(record, features, reasons)
        rows = np.flatnonzero(reasons == "")
        last = len(features)
        if source.max_documents is not None:
            remaining = source.max_documents - self._num_taken[source.name]
            if len(rows) >= remaining:
                rows = rows[:remaining]
                last = int(rows[-1]) + 1
                self._selection.full.add(source.name)
        self._num_taken[source.name] += len(rows)
        drops = Counter(record["drops"]) + Counter(reasons[:last].tolist())
        del drops[""]
        kept = Counter(dropped.reason for dropped in self._selection.left)
        for row in np.flatnonzero(reasons[:last] != "").tolist():
            if kept[reasons[row]] < MOST_EXAMPLES:
                kept[reasons[row]] += 1
                self._selection.left.append(near.get(row) or DroppedDocument(reasons[row], record, row))
        return _CandidatePartition(source, record, features.select(self._columns).take(rows), rows, drops, found)

    def _drop_near(
        self, record: PartitionRecord, features: pyarrow.Table, reasons: np.ndarray
    ) -> dict[int, DroppedDocument]:
        """Mark near duplicates among the remaining documents of a partition; return examples by row."""
        rows = np.flatnonzero(reasons == "").astype(np.int32)
        if self._near is None or not len(rows):
            return {}
        signatures = features.column("signature").take(rows).to_pylist()
        earlier, similarity = self._near.add(np.frombuffer(b"".join(signatures), np.uint8).reshape(len(rows), -1))
        self._offered.append((self._num_offered, record, rows))
        self._num_offered += len(rows)
        dropped = np.flatnonzero(earlier >= 0)
        reasons[rows[dropped]] = NEAR_DUPLICATE
        examples = {}
        for place in dropped[:MOST_EXAMPLES].tolist():
            number, row = int(earlier[place]), int(rows[place])
            first, other, other_rows = next(entry for entry in reversed(self._offered) if entry[0] <= number)
            like = other, int(other_rows[number - first])
            examples[row] = DroppedDocument(NEAR_DUPLICATE, record, row, like, float(similarity[place]))
        return examples


def _select(
    settings: CorpusSettings, candidate: _CandidatePartition, boilerplate: SentenceCounts, selection: Selection
) -> SelectedPartition:
    features, rows, drops = candidate.features, candidate.rows, candidate.drops
    num_words = features.column("num_words").to_numpy().copy()
    num_sentences = features.column("num_sentences").to_numpy().copy()
    copies = np.full(len(rows), int(candidate.source.weight))
    if share := candidate.source.weight % 1:
        digests = features.column("digest").to_pylist()
        copies += np.array([share_of(digest, "weight") < share for digest in digests], dtype=int)
    cuts: dict[int, frozenset[int]] = {}
    is_short = np.zeros(len(rows), dtype=bool)
    for place in range(len(rows)) if len(boilerplate.digests) else []:
        cut = boilerplate.holds(features.column("sentence_digests")[place].values.to_numpy())
        if not cut.any():
            continue
        words = features.column("sentence_words")[place].values.to_numpy()
        num_words[place], num_sentences[place] = words[~cut].sum(), (~cut).sum()
        cuts[int(rows[place])] = frozenset(np.flatnonzero(cut).tolist())
        drops[BOILERPLATE] += int(cut.sum())
        has_few_words = num_words[place] < settings.min_words
        if has_few_words or num_sentences[place] < settings.min_sentences:
            is_short[place] = True
            drops["too few words" if has_few_words else "too few sentences"] += 1
    drops[WEIGHT] += int((copies[~is_short] == 0).sum())
    copies[is_short] = 0
    selection.lengths.update(np.repeat(num_words, copies).tolist())
    taken = rows[copies > 0].tolist()
    selection.contamination += [candidate.matches[row] for row in taken if row in candidate.matches]
    places = np.repeat(np.arange(len(rows)), copies)
    parts = []
    first = 0
    for file in candidate.record["parts"]:
        last = first + file["documents"]
        own = places[slice(*np.searchsorted(rows[places], [first, last]).tolist())]
        if len(own):
            counts = Counter(
                documents=len(own),
                sentences=int(num_sentences[own].sum(dtype=np.int64)),
                words=int(num_words[own].sum(dtype=np.int64)),
            )
            own_cuts = {row - first: cut for row, cut in cuts.items() if first <= row < last}
            parts.append(SelectedFile(file, (rows[own] - first).astype(np.int32), counts, own_cuts))
        first = last
    return SelectedPartition(candidate.record, parts, sum((part.counts for part in parts), Counter[str]()), +drops)
