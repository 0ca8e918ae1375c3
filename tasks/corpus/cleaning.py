"""Cleaning, the parallel part: one unit of input to files of documents, and a record of what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tasks import versions
from tasks.corpus.examples import Examples, SharedSentences
from tasks.corpus.features import FactsWriter, facts_of
from tasks.corpus.filters import quality
from tasks.corpus.partition_store import Record, UnitStore, check_version
from tasks.corpus.partitions import Unit
from tasks.corpus.shards import ShardWriter
from tasks.corpus.sources.documents import Document, Draft, Dropped
from tasks.corpus.sources.hashed_words import hash_words
from tasks.corpus.sources.prose import num_symbol_words, num_words
from tasks.corpus.sources.registry import KINDS
from tasks.corpus.sources.sentences import sentences_of
from tasks.corpus.sources.wikitext import MARKUP
from tasks.params.corpus import MEBIBYTE, CorpusSettings, Prose, Source, TableSource, TextSource

_PART_BYTES = 128 * MEBIBYTE  # of a unit that cannot be read in parts, such as a packed file of rows


@dataclass(frozen=True)
class Work:
    """A unit on its way to a worker."""

    unit: Unit
    settings: CorpusSettings
    store: UnitStore
    version: int = versions.corpus
    """Of the code that listed the unit."""


def clean_unit(work: Work) -> Record:
    """Clean a unit and put what comes of it into the store, in constant memory however large the unit is.

    Raises:
        UserError: a file is damaged or of another form than its kind, is gone, or was changed since it was listed.
    """
    unit, store = work.unit, work.store
    check_version(work.version)
    drops: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    examples = Examples()
    shared = SharedSentences()
    with store.scratch() as folder:
        facts_path = folder / f"{unit.key}.facts.parquet"
        writer = ShardWriter(folder, _PART_BYTES, prefix=f"{unit.key}-")
        facts = FactsWriter(facts_path)
        for document in clean_documents(unit, work.settings, drops, examples):
            writer.add(unit.source.name, document.id, document.title, document.sentences)
            row = facts_of(document, work.settings)
            facts.add(row)
            shared.add(document, row[0])
            counts.update(documents=1, sentences=len(document.sentences), words=document.num_words)
        writer.close()
        facts.close()
        for piece in unit.pieces:
            piece.check_unchanged()
        record: Record = {
            "key": unit.key,
            "source": unit.source.name,
            "label": unit.label,
            "files": [piece.name for piece in unit.pieces],
            "input_bytes": unit.num_bytes,
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
    unit: Unit, settings: CorpusSettings, drops: Counter[str], examples: Examples
) -> Iterator[Document]:
    """The documents of a unit, in order, that pass all gates but those that need to know the others."""
    kind = KINDS[unit.source.kind]
    for piece in unit.pieces:
        for item in kind.read(unit.source, piece, drops):
            try:
                drafts = kind.parse(unit.source, item)
            except Dropped as reason:
                drops[str(reason)] += 1
                continue
            for draft in drafts if isinstance(drafts, list) else [drafts]:
                try:
                    yield _document(draft, unit.source, settings, drops, examples)
                except Dropped as reason:
                    drops[str(reason)] += 1
                    examples.add(str(reason), draft.id, draft.title, draft.paragraphs)


def _document(
    draft: Draft, source: Source, settings: CorpusSettings, drops: Counter[str], examples: Examples
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
