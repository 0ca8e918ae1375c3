"""All sources to one corpus: reading here, cleaning in workers, and what stays written in the order of the sources."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from model.errors import UserError
from tasks.corpus import books, mediawiki, tables, texts, wikiextractor
from tasks.corpus.clean import MARKUP
from tasks.corpus.dedup import Seen, document_digest, share_of
from tasks.corpus.documents import Chunk, Document, Draft, Dropped
from tasks.corpus.prose import num_symbol_words, num_words
from tasks.corpus.sentences import sentences_of
from tasks.corpus.settings import CorpusSettings, Prose, Source, TableSource, TextSource
from tasks.corpus.shards import ShardWriter
from tasks.corpus.shuffle import shuffle_words
from tasks.parallel import ordered_map

Report = Callable[[int, int, str], None]


class CorpusSummary(TypedDict):
    """What came of the sources."""

    documents: int
    """Rows of the corpus (a document of weight 2 is two)."""
    sentences: int
    words: int
    """As tasks.corpus.prose.num_words counts them."""
    drops: dict[str, int]
    """Documents that were left out, by reason; "sentence with markup" counts sentences."""
    sources: dict[str, dict[str, int]]
    """Documents, sentences and words of each source."""


@dataclass(frozen=True)
class Kind:
    """How one kind of source is read and parsed."""

    is_file: Callable[[Path], bool]
    """Which files of a folder are of this kind."""
    looks_like: str
    read: Callable[[Any, Path, str], Iterator[Chunk]]
    """Chunks of a file, in the reading process: (source, path, name for messages)."""
    parse: Callable[[Any, Any, Chunk], Draft | list[Draft]]
    """Documents of one item, in a worker."""


def _ends_with(*suffixes: str) -> Callable[[Path], bool]:
    return lambda path: path.name.endswith(suffixes)


KINDS: dict[str, Kind] = {
    "mediawiki": Kind(_ends_with(*mediawiki.SUFFIXES), ".xml.bz2 or .xml", mediawiki.read_chunks, mediawiki.parse),
    "parquet": Kind(_ends_with(*tables.PARQUET_SUFFIXES), ".parquet", tables.read_parquet_chunks, tables.parse),
    "jsonl": Kind(_ends_with(*tables.JSONL_SUFFIXES), ".jsonl", tables.read_jsonl_chunks, tables.parse),
    "csv": Kind(_ends_with(*tables.CSV_SUFFIXES), ".csv or .tsv", tables.read_csv_chunks, tables.parse),
    "text": Kind(_ends_with(*texts.SUFFIXES), ".txt", texts.read_chunks, texts.parse),
    "books": Kind(_ends_with(*books.SUFFIXES), ".txt, .zip or .tar", books.read_chunks, books.parse),
    "wikiextractor": Kind(
        lambda path: path.name.startswith("wiki_"), "wiki_NN", wikiextractor.read_chunks, wikiextractor.parse
    ),
}  # fmt: skip


def build_corpus(
    settings: CorpusSettings, data_dir: Path, out_dir: Path, report: Report | None = None, num_workers: int = 1
) -> CorpusSummary:
    """Write the corpus of all sources into `out_dir`; the same bytes with any number of workers.

    Args:
        settings: the section `corpus` of params.yaml.
        data_dir: the folder that the sources' paths start from.
        out_dir: a folder to fill; where it fails, nothing is left in it.
        report: called with bytes read, bytes to read and a short text.
        num_workers: processes that clean.

    Raises:
        UserError: a source is missing, damaged or of another form than its kind, or nothing is left of it all.
    """
    files = [(source, path) for source in settings.sources for path in source_files(source, data_dir)]
    unshuffled = out_dir / ".in-order"
    writer = ShardWriter(unshuffled if settings.shuffle_words else out_dir, settings.shard_bytes)
    builder = _Builder(settings, data_dir, files, writer, report)
    last = writer
    try:
        builder.run(num_workers)
        writer.close()
        summary = builder.summary()
        if not summary["documents"]:
            raise UserError(
                f"corpus: no document is left; dropped: {_listed(summary['drops']) or 'none, sources are empty'}"
            )
        if settings.shuffle_words:
            last = ShardWriter(out_dir, settings.shard_bytes)
            shuffle_words(writer.paths, last, settings.shuffle_seed, builder.say)
            last.close()
    except BaseException:
        writer.abandon()
        last.abandon()
        raise
    finally:
        shutil.rmtree(unshuffled, ignore_errors=True)
    return summary


def source_files(source: Source, data_dir: Path) -> list[Path]:
    """The files of a source, sorted by name.

    Raises:
        UserError: there are none.
    """
    kind = KINDS[source.kind]
    if any(mark in source.path for mark in "*?["):
        found = sorted(path for path in data_dir.glob(source.path) if path.is_file())
    elif (data_dir / source.path).is_dir():
        found = sorted(path for path in (data_dir / source.path).rglob("*") if path.is_file() and kind.is_file(path))
    elif (data_dir / source.path).is_file():
        found = [data_dir / source.path]
    else:
        raise UserError(
            f"{data_dir.name}/{source.path}: missing, and the corpus source '{source.name}' reads it; "
            "put it there, or `cloze sample` makes the sample data"
        )
    if not found:
        raise UserError(
            f"{data_dir.name}/{source.path}: no {kind.looks_like} file for the corpus source '{source.name}'"
        )
    return found


class _Builder:
    def __init__(
        self,
        settings: CorpusSettings,
        data_dir: Path,
        files: Sequence[tuple[Source, Path]],
        writer: ShardWriter,
        report: Report | None,
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._files = files
        self._writer = writer
        self._report = report
        self._total_bytes = sum(path.stat().st_size for _, path in files)
        self._done_bytes = 0
        self._seen = Seen()
        self._drops: Counter[str] = Counter()
        self._counts = {source.name: Counter[str]() for source in settings.sources}
        self._full: set[str] = set()

    def run(self, num_workers: int) -> None:
        """Read, clean and write every source."""
        for cleaned in ordered_map(clean_chunk, self._work(), num_workers):
            self._take(cleaned)

    def say(self, text: str) -> None:
        """Report progress with a text."""
        if self._report:
            self._report(self._done_bytes, self._total_bytes, text)

    def summary(self) -> CorpusSummary:
        """The counts of what was written."""
        total: Counter[str] = sum(self._counts.values(), Counter())
        return {
            "documents": total["documents"],
            "sentences": total["sentences"],
            "words": total["words"],
            "drops": dict(sorted(self._drops.items())),
            "sources": {
                name: {what: counts[what] for what in ("documents", "sentences", "words")}
                for name, counts in self._counts.items()
            },
        }

    def _work(self) -> Iterator[Work]:
        before = 0
        for source, path in self._files:
            if source.name not in self._full:
                name = path.relative_to(self._data_dir.parent).as_posix()
                for chunk in KINDS[source.kind].read(source, path, name):
                    yield Work(source, self._settings, chunk, before + chunk.done_bytes)
                    if source.name in self._full:
                        break
            before += path.stat().st_size

    def _take(self, cleaned: Cleaned) -> None:
        source = cleaned.source
        if source.name in self._full:
            return  # read ahead of the limit
        self._drops += cleaned.drops
        counts = self._counts[source.name]
        for document in cleaned.documents:
            if self._settings.drop_duplicates and not self._seen.add(document.digest):
                self._drops["duplicate"] += 1
                continue
            copies = int(source.weight) + (share_of(document.digest, "weight") < source.weight % 1)
            if not copies:
                self._drops["weight"] += 1
            for _ in range(copies):
                self._writer.add(source.name, document.id, document.title, document.sentences)
                counts.update(documents=1, sentences=len(document.sentences), words=document.num_words)
            counts["read"] += 1
            if source.max_documents is not None and counts["read"] >= source.max_documents:
                self._full.add(source.name)
                break
        self._done_bytes = cleaned.done_bytes
        self.say(f"{source.name}: {counts['documents']:,} documents")


@dataclass(frozen=True)
class Work:
    """One chunk on its way to a worker."""

    source: Source
    settings: CorpusSettings
    chunk: Chunk
    done_bytes: int


@dataclass(frozen=True)
class Cleaned:
    """One chunk on its way back."""

    source: Source
    documents: list[Document]
    drops: Counter[str]
    done_bytes: int


def clean_chunk(work: Work) -> Cleaned:
    """The documents of one chunk, in order, that pass all gates but those that need to know the others."""
    parse = KINDS[work.source.kind].parse
    documents: list[Document] = []
    drops: Counter[str] = Counter(work.chunk.drops)
    for item in work.chunk.items:
        try:
            drafts = parse(work.source, item, work.chunk)
        except Dropped as reason:
            drops[str(reason)] += 1
            continue
        for draft in drafts if isinstance(drafts, list) else [drafts]:
            try:
                documents.append(_document(draft, work.source, work.settings, drops))
            except Dropped as reason:
                drops[str(reason)] += 1
    return Cleaned(work.source, documents, drops, work.done_bytes)


def _document(draft: Draft, source: Source, settings: CorpusSettings, drops: Counter[str]) -> Document:
    prose = source if isinstance(source, Prose) else None
    if isinstance(source, TableSource | TextSource) and not source.prose_only:
        prose = None
    sentences = sentences_of(draft.paragraphs, source.language, prose)
    if prose is not None:
        without_markup = [sentence for sentence in sentences if not MARKUP.search(sentence)]
        if len(without_markup) < len(sentences):
            drops["sentence with markup"] += len(sentences) - len(without_markup)
            sentences = without_markup
    words = sum(map(num_words, sentences))
    if words < settings.min_words:
        raise Dropped("too few words")
    if len(sentences) < settings.min_sentences:
        raise Dropped("too few sentences")
    runs = " ".join(sentences).split(" ")
    if num_symbol_words(runs) > settings.max_symbol_share * len(runs):
        raise Dropped("mostly symbols")
    return Document(draft.id, draft.title, sentences, words, document_digest(sentences))


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
