"""What the corpus is made of: a row of settings per source, and what a document must be to stay."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, field_validator

from model.common.config_base import Settings
from tasks.corpus.filters.contamination import ContaminationSettings
from tasks.corpus.filters.near_duplicates import NearDuplicateSettings
from tasks.corpus.filters.quality import GateSettings

MEBIBYTE = 1 << 20


class Source(Settings):
    """What every kind of source has."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """Goes into the column `source` of every document."""
    kind: str
    """mediawiki, parquet, jsonl, csv, text, books or wikiextractor."""
    path: str
    """A file, a folder (all its files of the kind, sorted by name) or a glob, relative to data/; or
    s3://bucket/prefix."""
    language: str = "en"
    """Code of the language whose rules cut sentences."""
    weight: float = Field(default=1.0, gt=0, le=100)
    """How often a document stands in the corpus: 2 is twice, 0.5 every second one (chosen by its digest)."""
    max_documents: int | None = Field(default=None, ge=1)
    """Read at most this many documents, from the start; null reads all."""
    licence: str = ""
    """The licence of the text, for the data card."""
    origin: str = ""
    """Where the text is from, an address or a citation, for the data card."""

    @field_validator("path")
    @classmethod
    def _below_data(cls, path: str) -> str:
        parts = PurePosixPath(path)
        if not path.startswith("s3://") and (parts.is_absolute() or ".." in parts.parts or "\0" in path):
            raise ValueError("expected a path below data/, like wikipedia/en, or s3://bucket/prefix")
        return path


class Prose(Settings):
    """Which lines of an encyclopedia are prose rather than captions, headings and list entries."""

    min_paragraph_words: int = Field(default=6, ge=1)
    """A shorter paragraph is a heading or a caption that lost its markup."""
    require_sentence_end: bool = True
    """Drop paragraphs that do not end in a sentence mark; off for languages that write none (Thai)."""


class MediaWikiSource(Source, Prose):
    """A MediaWiki export dump, as dumps.wikimedia.org offers: .xml, .xml.bz2, multistream .xml.bz2."""

    kind: Literal["mediawiki"]
    namespaces: tuple[int, ...] = (0,)
    """Numbers of the namespaces whose pages are read; 0 holds the articles."""
    max_page_bytes: int = Field(default=8_000_000, ge=1000)
    """A larger page (its XML) is refused and counted. MediaWiki itself allows 2 MiB of wikitext."""


class TableSource(Source, Prose):
    """Rows with a text that has no markup any more, as in the hub's `wikimedia/wikipedia`."""

    text_column: str = "text"
    """The column with the text; a line break ends a paragraph."""
    id_column: str | None = "id"
    """The column with an identifier; null numbers the rows."""
    title_column: str | None = "title"
    """The column with a title; null leaves titles empty."""
    rows_per_document: int = Field(default=1, ge=1)
    """Join so many rows into one document: for the hub's BookCorpus, whose rows are single sentences."""
    prose_only: bool = True
    """Drop headings, captions and list entries as the two fields on paragraphs say; off keeps every line."""


class ParquetSource(TableSource):
    """Parquet files."""

    kind: Literal["parquet"]


class JsonlSource(TableSource):
    """Files with a JSON object per line, also .jsonl.gz and .jsonl.bz2; columns are keys."""

    kind: Literal["jsonl"]
    max_row_bytes: int = Field(default=16 * MEBIBYTE, ge=1000, le=64 * MEBIBYTE)
    """A longer line is refused and counted."""


class CsvSource(TableSource):
    """Files of comma-separated values (.csv) or with tabs (.tsv), also packed (.gz, .bz2); the first line names the
    columns."""

    kind: Literal["csv"]
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    """Between columns; null takes a tab in .tsv files and a comma in others."""
    quoted: bool = True
    """Whether quotation marks around a field are marks and not text; many .tsv files need it off."""
    max_field_bytes: int = Field(default=8 * MEBIBYTE, ge=1000, le=1024 * MEBIBYTE)
    """A longer field (characters) is refused: mostly a quotation mark that nothing closes."""


class TextSource(Source, Prose):
    """Plain text in UTF-8 that is no book, .txt, .txt.gz or .txt.bz2; a line break ends a paragraph."""

    kind: Literal["text"]
    documents: Literal["files", "blocks", "lines"] = "files"
    """What makes a document: a file, lines between blank lines (as BERT's own preparation reads them), or a line."""
    max_document_bytes: int = Field(default=64 * MEBIBYTE, ge=1000)
    """A larger document is passed over and counted."""
    prose_only: bool = False
    """Drop headings, captions and list entries as the two fields on paragraphs say; off keeps every line."""


class WikiextractorSource(Source, Prose):
    """Folders that wikiextractor wrote: files wiki_NN with <doc> elements, or with JSON lines."""

    kind: Literal["wikiextractor"]
    max_document_bytes: int = Field(default=16 * MEBIBYTE, ge=1000, le=64 * MEBIBYTE)
    """A larger document is refused and counted."""


class BooksSource(Source):
    """Plain-text books, a .txt file each, in UTF-8 (or Windows-1252 where a file is no UTF-8); also inside .zip and
    .tar archives, which are read in place."""

    kind: Literal["books"]
    documents: Literal["chapters", "books"] = "chapters"
    """What makes a document: a chapter, or the whole book."""
    heading_words: tuple[str, ...] = (
        "chapter", "book", "part", "volume", "letter", "canto", "stave", "act", "scene", "section",
        "kapitel", "chapitre", "capítulo", "capitolo", "hoofdstuk", "rozdział", "глава",
    )  # fmt: skip
    """A short line that starts with one of them and a number is a chapter's heading."""
    max_book_bytes: int = Field(default=64 * MEBIBYTE, ge=1000)
    """A larger file is refused, inside an archive passed over and counted: it is rarely one book."""


AnySource = Annotated[
    MediaWikiSource | ParquetSource | JsonlSource | CsvSource | TextSource | BooksSource | WikiextractorSource,
    Field(discriminator="kind"),
]


class CorpusSettings(Settings):
    """The section `corpus` of params.yaml."""

    sources: tuple[AnySource, ...] = Field(min_length=1)
    """Where text comes from, in this order."""
    min_words: int = Field(default=20, ge=1)
    """Drop documents with fewer words (runs of characters between blanks; without blanks, four characters a word)."""
    min_sentences: int = Field(default=2, ge=1)
    """Drop documents with fewer sentences: one sentence makes no pair for next-sentence prediction."""
    max_symbol_share: float = Field(default=0.5, ge=0, le=1)
    """Drop documents in which a larger share of the words holds no letter: columns of numbers, not text."""
    drop_duplicates: bool = True
    """Keep only the first of documents that are equal but for case and blanks."""
    gates: GateSettings = GateSettings()
    """What else a document must be to stay."""
    near_duplicates: NearDuplicateSettings | None = NearDuplicateSettings()
    """Keep only the first of documents that are nearly or wholly equal; null keeps those that are nearly equal."""
    contamination: ContaminationSettings = ContaminationSettings()
    """What is done about texts of the benchmarks' dev and test files; `report`, `drop` or `off` will do."""
    shuffle_words: bool = False
    """The negative control: permute all words of the whole corpus, keeping the number of words of every sentence
    and document, so that only how often each word occurs is left to learn. Holds the corpus in memory."""
    shuffle_seed: int = Field(default=0, ge=0)
    """The key of that permutation."""
    unit_bytes: int = Field(default=8 * MEBIBYTE, ge=1000, le=1024 * MEBIBYTE)
    """How much input a process cleans at a time, and what a restart does again at most: a part of a large file, or a
    group of small ones."""
    shard_bytes: int = Field(default=128 * MEBIBYTE, ge=1000, le=1024 * MEBIBYTE)
    """Files of the corpus have about this size to twice as much; a source's last one may be smaller."""
    scheduler: str | None = Field(default=None, pattern=r"^(tcp|tls|ucx|inproc)://.+")
    """Address of a Dask cluster that cleans (tcp://host:8786); null cleans in processes of this machine."""
    exchange: str | None = Field(default=None, pattern=r"^s3://[^/]+(/.*)?$")
    """s3://bucket/prefix where cleaned units lie, so that workers on other machines need no common folder; null keeps
    them in build/runs/corpus/units."""

    @field_validator("sources")
    @classmethod
    def _names_are_unique(cls, sources: tuple[Source, ...]) -> tuple[Source, ...]:
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two sources are named '{twice[0]}'")
        return sources
