"""Cleaning, the first parallel step: turn a partition of input into files of documents and a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sentencex

from tasks import versions
from tasks.corpus.document_features import FeaturesWriter, features_of
from tasks.corpus.drop_examples import DropExamples, SharedSentences
from tasks.corpus.filters import quality
from tasks.corpus.partition_store import PartitionRecord, PartitionStore, check_version
from tasks.corpus.partitions import Partition
from tasks.corpus.shards import ShardWriter
from tasks.corpus.sources.file_chunks import Document, Draft, Dropped
from tasks.corpus.sources.hashed_words import hash_words
from tasks.corpus.sources.prose import ends_sentence, has_letter, num_symbol_words, num_words
from tasks.corpus.sources.source_registry import SOURCE_TYPES
from tasks.corpus.sources.wikitext import MARKUP
from tasks.params.corpus import MEBIBYTE, CorpusSettings, Prose, Source, TableSource, TextSource

_PART_BYTES = 128 * MEBIBYTE  # of a partition that cannot be read in parts, such as a packed file of rows


@dataclass(frozen=True)
class CleaningJob:
    """The cleaning of one partition by a worker."""

    partition: Partition
    settings: CorpusSettings
    store: PartitionStore
    version: int = versions.corpus
    """Version of the code that listed the partition."""


def clean_partition(work: CleaningJob) -> PartitionRecord:
    """Clean a partition and put what comes of it into the store, in constant memory however large the partition is.

    Raises:
        UserError: a file is damaged or of another form than its kind, is gone, or was changed since it was listed.
    """
    partition, store = work.partition, work.store
    check_version(work.version)
    drops: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    examples = DropExamples()
    shared = SharedSentences()
    with store.scratch() as folder:
        facts_path = folder / f"{partition.key}.facts.parquet"
        writer = ShardWriter(folder, _PART_BYTES, prefix=f"{partition.key}-")
        features = FeaturesWriter(facts_path)
        for document in clean_documents(partition, work.settings, drops, examples):
            writer.add(partition.source.name, document.id, document.title, document.sentences)
            row = features_of(document, work.settings)
            features.add(row)
            shared.add(document, row[0])
            counts.update(documents=1, sentences=len(document.sentences), words=document.num_words)
        writer.close()
        features.close()
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
    """The documents of a partition, in order, that pass all gates but those that need to know the others."""
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
    prose = source if isinstance(source, Prose) else None
    if isinstance(source, TableSource | TextSource) and not source.prose_only:
        prose = None
    sentences = sentences_of(draft.paragraphs, source.language, prose)
    if prose is not None:
        without_markup = [sentence for sentence in sentences if not MARKUP.search(sentence)]
        if len(without_markup) < len(sentences):
            drops["sentence with markup"] += len(sentences) - len(without_markup)
            first = next(sentence for sentence in sentences if MARKUP.search(sentence))
            examples.add("sentence with markup", draft.id, draft.title, [first])
            sentences = without_markup
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


_GOES_ON = frozenset(",;:)]”»")  # what no sentence begins with


def sentences_of(paragraphs: Iterable[str], language: str, prose: Prose | None = None) -> list[str]:
    """The sentences of all paragraphs, in order; a sentence never reaches over the end of its paragraph.

    A segment without any letter ("1.", a row of asterisks) is joined to the sentence before it, or left out at the
    start of a paragraph.

    Args:
        paragraphs: tidy lines.
        language: code of the language; one that sentencex does not know is cut by its general rules.
        prose: what a paragraph must be to stay. An end without a sentence mark (a paragraph that ran into a list or a
            formula) is cut off.
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
