"""Cleaning, the first parallel step, turns an input partition into documents, features for selection, and a record with
examples of dropped documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow
import pyarrow.parquet
import sentencex

from tasks import versions
from tasks.corpus.filters import quality
from tasks.corpus.filters.duplicates import document_digest, signature_of
from tasks.corpus.partition_store import PartitionRecord, PartitionStore, check_version
from tasks.corpus.partitions import Partition
from tasks.corpus.shards import ShardWriter, table_of
from tasks.corpus.sources.file_chunks import Document, Draft, Dropped
from tasks.corpus.sources.hashed_words import hash_words
from tasks.corpus.sources.prose import ends_sentence, has_letter, num_symbol_words, num_words
from tasks.corpus.sources.source_registry import SOURCE_TYPES
from tasks.corpus.sources.wikitext import MARKUP
from tasks.params.corpus import MEBIBYTE, CorpusSettings, Prose, Source

_PART_BYTES = 128 * MEBIBYTE  # splits the output of inputs that must be read whole, such as compressed tables
_ROWS_PER_GROUP = 1 << 14
# One row per document. The signature and the sentence columns are null if the settings do not need them.
_FEATURES = pyarrow.schema(
    [
        ("digest", pyarrow.uint64()),
        ("num_words", pyarrow.int32()),
        ("num_sentences", pyarrow.int32()),
        ("signature", pyarrow.binary()),
        ("sentence_digests", pyarrow.list_(pyarrow.uint64())),
        ("sentence_words", pyarrow.list_(pyarrow.int32())),
    ]
)
Row = tuple[Any, ...]

MOST_EXAMPLES = 5
_SHOWN_CHARACTERS = 200
_MOST_SENTENCES = 1 << 20  # per partition; later sentences are not counted
_MOST_REPEATED = 50  # per partition


@dataclass(frozen=True)
class CleaningJob:
    """Arguments for cleaning one partition in a worker."""

    partition: Partition
    settings: CorpusSettings
    store: PartitionStore
    version: int = versions.corpus
    """Version of the code that listed the partition."""


class DropExample(TypedDict):
    """A dropped document."""

    id: str
    title: str
    text: str
    """The first 200 characters of the document."""
    note: str
    """Additional information, such as the similar document."""


class DropExamples:
    """Collects the first five dropped documents for each reason."""

    def __init__(self) -> None:
        self.by_reason: dict[str, list[DropExample]] = {}

    def add(self, reason: str, identifier: str, title: str, text: Iterable[str], note: str = "") -> None:
        """Keep a document, given as its sentences or paragraphs, unless five are already kept."""
        kept = self.by_reason.setdefault(reason, [])
        if len(kept) < MOST_EXAMPLES:
            kept.append({"id": identifier, "title": title[:_SHOWN_CHARACTERS], "text": _shown(text), "note": note})

    def update(self, examples: Mapping[str, Sequence[DropExample]]) -> None:
        for reason, found in examples.items():
            kept = self.by_reason.setdefault(reason, [])
            kept += found[: MOST_EXAMPLES - len(kept)]


def clean_partition(work: CleaningJob) -> PartitionRecord:
    """Clean a partition and store the results. Memory use does not depend on the size of the partition.

    Raises:
        UserError: a file is damaged or in the wrong format, or was removed or changed after it was listed.
    """
    partition, store = work.partition, work.store
    check_version(work.version)
    drops: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    examples = DropExamples()
    shared = _SharedSentences()
    features: list[Row] = []
    with store.scratch() as folder:
        facts_path = folder / f"{partition.key}.facts.parquet"
        writer = ShardWriter(folder, _PART_BYTES, prefix=f"{partition.key}-")
        with pyarrow.parquet.ParquetWriter(facts_path, _FEATURES, compression="zstd") as facts:
            for document in clean_documents(partition, work.settings, drops, examples):
                writer.add(partition.source.name, document.id, document.title, document.sentences)
                features.append(features_of(document, work.settings))
                shared.add(document, features[-1][0])
                counts.update(documents=1, sentences=len(document.sentences), words=document.num_words)
                if len(features) >= _ROWS_PER_GROUP:
                    facts.write_table(table_of(features, _FEATURES))
                    features.clear()
            facts.write_table(table_of(features, _FEATURES))
        writer.close()
        for chunk in partition.chunks:
            chunk.check_unchanged()
        record: PartitionRecord = {
            "key": partition.key,
            "source": partition.source.name,
            "label": partition.label,
            "files": [chunk.name for chunk in partition.chunks],
            "input_bytes": partition.num_bytes,
            "documents": counts["documents"],
            "sentences": counts["sentences"],
            "words": counts["words"],
            "drops": dict(sorted(drops.items())),
            "examples": dict(sorted(examples.by_reason.items())),
            "repeated": shared.top(),
            "parts": [
                {**store.put(path), "documents": documents}
                for path, documents in zip(writer.paths, writer.num_documents)
            ],
            "facts": store.put(facts_path),
        }
        store.put_record(record)
    return record


def clean_documents(
    partition: Partition, settings: CorpusSettings, drops: Counter[str], examples: DropExamples
) -> Iterator[Document]:
    """Yield the documents of a partition, in order, that pass all filters that look at a single document."""
    kind = SOURCE_TYPES[partition.source.kind]
    for chunk in partition.chunks:
        for item in kind.read(partition.source, chunk, drops):
            try:
                drafts = kind.parse(partition.source, item)
            except Dropped as reason:
                drops[str(reason)] += 1
                continue
            for draft in drafts if isinstance(drafts, list) else [drafts]:
                try:
                    yield _document(draft, partition.source, settings, drops, examples)
                except Dropped as reason:
                    drops[str(reason)] += 1
                    examples.add(str(reason), draft.id, draft.title, draft.paragraphs)


def _document(
    draft: Draft, source: Source, settings: CorpusSettings, drops: Counter[str], examples: DropExamples
) -> Document:
    prose = source if isinstance(source, Prose) and getattr(source, "prose_only", True) else None
    sentences = sentences_of(draft.paragraphs, source.language, prose)
    if prose is not None:
        with_markup = [sentence for sentence in sentences if MARKUP.search(sentence)]
        if with_markup:
            drops["sentence with markup"] += len(with_markup)
            examples.add("sentence with markup", draft.id, draft.title, with_markup[:1])
            sentences = [sentence for sentence in sentences if not MARKUP.search(sentence)]
    words = sum(map(num_words, sentences))
    if words < settings.min_words:
        raise Dropped("too few words")
    if len(sentences) < settings.min_sentences:
        raise Dropped("too few sentences")
    runs = " ".join(sentences).split(" ")
    if num_symbol_words(runs) > settings.max_symbol_share * len(runs):
        raise Dropped("mostly symbols")
    hashed = hash_words(sentences)
    quality.check(sentences, hashed, source.language, settings.gates)
    return Document(draft.id, draft.title, sentences, words, hashed)


_GOES_ON = frozenset(",;:)]”»")  # no sentence begins with these characters


def sentences_of(paragraphs: Iterable[str], language: str, prose: Prose | None = None) -> list[str]:
    """Split paragraphs into sentences, in order; a sentence never crosses a paragraph boundary.

    A segment without letters ("1.", a row of asterisks) is appended to the previous sentence, or dropped at the start
    of a paragraph. With `prose`, short paragraphs are dropped, and so is a final segment without a sentence mark,
    which usually leads into a list or a formula.
    """
    sentences: list[str] = []
    for paragraph in paragraphs:
        segments = _segments(paragraph, language)
        if prose is not None:
            if prose.require_sentence_end and segments and not ends_sentence(segments[-1]):
                segments.pop()
            if sum(map(num_words, segments)) < prose.min_paragraph_words:
                continue
        sentences += segments
    return sentences


def _segments(paragraph: str, language: str) -> list[str]:
    segments: list[str] = []
    for segment in sentencex.segment(language, paragraph):
        segment = segment.strip()
        if segments and segment and (not has_letter(segment) or segment[0] in _GOES_ON):
            segments[-1] += segment if segment[0] in _GOES_ON else f" {segment}"
        elif has_letter(segment):
            segments.append(segment)
    return segments


def features_of(document: Document, settings: CorpusSettings) -> Row:
    """Compute the features of a document that selection needs, without its text."""
    signature = digests = words = None
    if settings.near_duplicates is not None:
        signature = signature_of(document.hashed.words, settings.near_duplicates).tobytes()
    if settings.gates.max_documents_with_sentence is not None:
        digests = document.hashed.sentence_digests
        words = list(map(num_words, document.sentences))
    digest = document_digest(document.sentences)
    return digest, document.num_words, len(document.sentences), signature, digests, words


def read_features(path: Path) -> pyarrow.Table:
    """Read the document features of a partition from the file listed under `facts` in its record."""
    return pyarrow.parquet.read_table(path, schema=_FEATURES, partitioning=None)


def _shown(text: Iterable[str]) -> str:
    joined = ""
    for line in text:
        joined += f" {line}" if joined else line
        if len(joined) > _SHOWN_CHARACTERS:
            return joined[:_SHOWN_CHARACTERS] + "…"
    return joined


class _SharedSentences:
    """Counts how many distinct documents of a partition contain each sentence, in bounded memory."""

    def __init__(self) -> None:
        self._documents: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self._seen: set[int] = set()

    def add(self, document: Document, digest: int) -> None:
        if digest in self._seen or len(self._documents) >= _MOST_SENTENCES:
            return
        self._seen.add(digest)
        digests, places = np.unique(document.hashed.sentence_digests, return_index=True)
        for sentence, place in zip(digests.tolist(), places.tolist()):
            count = self._documents.get(sentence, 0) + 1
            self._documents[sentence] = count
            if count == 2 and sentence:
                self._texts[sentence] = _shown([document.sentences[place]])

    def top(self) -> list[tuple[int, str]]:
        """Return (number of documents, text) of sentences in two or more documents, most frequent first."""
        found = ((self._documents[sentence], text) for sentence, text in self._texts.items())
        return sorted(found, key=lambda entry: (-entry[0], entry[1]))[:_MOST_REPEATED]
