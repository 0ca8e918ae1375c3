"""Settings of the `corpus` section of params.yaml: sources and filters of the pre-training text."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from model.benchmarks.custom_task import is_custom
from model.benchmarks.table import BENCHMARKS, find
from model.common.bounds import (
    MOST_ELEMENTS,
    NUMBER,
    Count,
    CountOrZero,
    FilePath,
    ItemBytes,
    Line,
    Name,
    Seed,
    Share,
    ShareAboveZero,
)
from model.common.config_base import Settings

MEBIBYTE = 1 << 20
_MISSED = 0.005  # largest share of pairs at the threshold that the bands can miss
_STANDARD_ERRORS = 2.0


class Source(Settings):
    """Settings shared by all source types."""

    name: Name
    """Name of the source, stored in the `source` column of every document."""
    kind: str
    """Source type: mediawiki, parquet, jsonl, csv, text, books or wikiextractor."""
    path: FilePath
    """A file, a folder (reads all its files of this kind, sorted by name) or a glob pattern, relative to data/; or
    s3://bucket/prefix."""
    language: Line = "en"
    """Language code; selects the rules for sentence splitting."""
    weight: Annotated[float, Field(gt=0, le=100), NUMBER] = 1.0
    """Copies of each document in the corpus: 2 repeats each document, 0.5 keeps half of them (chosen by hash)."""
    max_documents: Count | None = None
    """Keep at most this many documents, from the start; null keeps all."""
    license: Line = ""
    """License of the text, shown on the data card."""
    origin: str = ""
    """Origin of the text (a URL or a citation), shown on the data card."""

    @field_validator("path")
    @classmethod
    def _below_data(cls, path: str) -> str:
        parts = PurePosixPath(path)
        if not path.startswith("s3://") and (parts.is_absolute() or ".." in parts.parts or "\0" in path):
            raise ValueError("expected a path below data/, like wikipedia/en, or s3://bucket/prefix")
        return path


class Prose(Settings):
    """Rules that separate prose from captions, headings and list entries."""

    min_paragraph_words: Count = 6
    """Drop shorter paragraphs, which are usually headings or captions without their markup."""
    require_sentence_end: bool = True
    """Drop the end of a paragraph if it has no sentence mark; turn off for languages without sentence marks (Thai)."""


class MediaWikiSource(Source, Prose):
    """A MediaWiki export dump, as published on dumps.wikimedia.org: .xml, .xml.bz2 or multistream .xml.bz2."""

    kind: Literal["mediawiki"]
    namespaces: tuple[CountOrZero, ...] = (0,)
    """Numbers of the namespaces to read; 0 contains the articles."""
    max_page_bytes: ItemBytes = 8_000_000
    """Skip and count pages with more XML. MediaWiki itself limits wikitext to 2 MiB."""


class TableSource(Source, Prose):
    """Tables of text without markup, such as `wikimedia/wikipedia` on the hub."""

    text_column: str = "text"
    """Column with the text; a line break ends a paragraph."""
    id_column: str | None = "id"
    """Column with a document identifier; null uses row numbers."""
    title_column: str | None = "title"
    """Column with a title; null leaves titles empty."""
    rows_per_document: Count = 1
    """Number of rows to join into one document; useful for rows that are single sentences."""
    prose_only: bool = True
    """Drop headings, captions and list entries as the two fields on paragraphs say; off keeps every line."""


class ParquetSource(TableSource):
    """Parquet files."""

    kind: Literal["parquet"]


class JsonlSource(TableSource):
    """Files with one JSON object per line, optionally compressed (.jsonl.gz, .jsonl.bz2); columns are keys."""

    kind: Literal["jsonl"]
    max_row_bytes: Annotated[int, Field(ge=1000, le=64 * MEBIBYTE), NUMBER] = 16 * MEBIBYTE
    """Skip and count longer lines."""


class CsvSource(TableSource):
    """Comma-separated (.csv) or tab-separated (.tsv) files, optionally compressed (.gz, .bz2); the first line names the
    columns."""

    kind: Literal["csv"]
    delimiter: str | None = Field(default=None, pattern=r'^[^\r\n"]$')
    """Column delimiter; null uses a tab for .tsv files and a comma for others."""
    quoted: bool = True
    """Treat quotation marks as delimiters around a field; set to false for many .tsv files."""
    max_field_bytes: Annotated[int, Field(ge=1000, le=1024 * MEBIBYTE), NUMBER] = 8 * MEBIBYTE
    """Stop with an error at a field with more characters, which usually means an unclosed quotation mark."""


class TextSource(Source, Prose):
    """Plain UTF-8 text (.txt, .txt.gz or .txt.bz2) other than books; a line break ends a paragraph."""

    kind: Literal["text"]
    documents: Literal["files", "blocks", "lines"] = "files"
    """One document per file, per block between blank lines (as in BERT's original preparation), or per line."""
    lines_per_document: Count = 1
    """With `documents: lines`, number of lines to join into one document; BookCorpus has one sentence per line."""
    max_document_bytes: ItemBytes = 64 * MEBIBYTE
    """Skip and count larger documents."""
    prose_only: bool = False
    """Drop headings, captions and list entries as the two fields on paragraphs say; off keeps every line."""

    @model_validator(mode="after")
    def _lines_are_documents(self) -> TextSource:
        if self.lines_per_document > 1 and self.documents != "lines":
            raise ValueError("lines_per_document applies to `documents: lines`; set both")
        return self


class WikiextractorSource(Source, Prose):
    """Output folders of wikiextractor: files named wiki_NN with <doc> elements or JSON lines."""

    kind: Literal["wikiextractor"]
    max_document_bytes: Annotated[int, Field(ge=1000, le=64 * MEBIBYTE), NUMBER] = 16 * MEBIBYTE
    """Skip and count larger documents."""


class BooksSource(Source):
    """Plain-text books, one .txt file per book, in UTF-8 (or Windows-1252 if a file is not valid UTF-8); also in .zip
    and .tar archives, which are read in place."""

    kind: Literal["books"]
    documents: Literal["chapters", "books"] = "chapters"
    """One document per chapter or per book."""
    heading_words: tuple[str, ...] = (
        "chapter", "book", "part", "volume", "letter", "canto", "stave", "act", "scene", "section",
        "kapitel", "chapitre", "capítulo", "capitolo", "hoofdstuk", "rozdział", "глава",
    )  # fmt: skip
    """A short line that starts with one of these words and a number is a chapter heading."""
    max_book_bytes: ItemBytes = 64 * MEBIBYTE
    """Stop with an error at a larger file; inside an archive, skip and count it."""


AnySource = Annotated[
    MediaWikiSource | ParquetSource | JsonlSource | CsvSource | TextSource | BooksSource | WikiextractorSource,
    Field(discriminator="kind"),
]


class QualitySettings(Settings):
    """Quality filters in addition to the minimum lengths; null turns a filter off."""

    min_script_share: ShareAboveZero | None = 0.5
    """Drop documents with a smaller share of letters in the scripts of the source's language ("wrong script")."""
    check_language: bool = False
    """Drop documents whose language, as detected by py3langid, differs from the source's ("wrong language").
    Detection is unreliable for short documents and related languages."""
    max_repeated_sentences: Share | None = 0.3
    """Drop documents in which a larger share of the sentences repeats an earlier one ("repeats itself"). Rae et al.
    2021 (arXiv:2112.11446, table A1) use this limit for lines."""
    max_repeated_words: Share | None = 0.2
    """Drop documents in which a larger share of the words is in repeated sentences (also from Rae et al. 2021)."""
    max_documents_with_sentence: Count | None = None
    """Remove sentences that occur in more than this many documents of the corpus ("boilerplate sentence")."""


class NearDuplicateSettings(Settings):
    """Settings of near-duplicate detection."""

    threshold: Annotated[float, Field(ge=0.5, le=0.99), NUMBER] = 0.8
    """Drop a document if the Jaccard similarity of its shingles to those of an earlier document reaches this value. The
    similarity is estimated, so the decision uses a limit two standard errors lower (0.73 by default), which finds 97 %
    of the pairs exactly at the threshold."""
    shingle_words: Annotated[int, Field(ge=1, le=20), NUMBER] = 5
    """Number of words in a shingle."""
    num_hashes: Annotated[int, Field(ge=64, le=512), NUMBER] = 128
    """Bytes of a signature. More bytes estimate better: the standard error is 0.035 with 128 and 0.025 with 256."""

    @property
    def decision(self) -> float:
        """Smallest estimated similarity of a pair of near duplicates."""
        error = math.sqrt(self.threshold * (1 - self.threshold) / self.num_hashes)
        return self.threshold - _STANDARD_ERRORS * error

    @property
    def bands(self) -> tuple[int, int]:
        """Number of bands and rows per band: the most rows that miss at most 0.5 % of pairs at the threshold."""
        for rows in range(8, 0, -1):
            bands = math.ceil(math.log(_MISSED) / math.log1p(-(self.threshold**rows)))
            if rows * bands <= self.num_hashes:
                return bands, rows
        raise AssertionError("one row always fits")


class ContaminationSettings(Settings):
    """Handling of benchmark dev and test texts found in the corpus; a single word sets `action`."""

    action: Literal["report", "drop", "off"] = "report"
    """`report` counts matches, `drop` also drops the documents that contain them, and `off` skips the check."""
    benchmarks: tuple[FilePath, ...] = tuple(BENCHMARKS)
    """Benchmarks to check, if their files are in data/. Name a custom task by its YAML file (tasks/letters.yaml), and
    add data/tasks to the deps of the corpus stage in dvc.yaml."""
    run_words: Annotated[int, Field(ge=5, le=50), NUMBER] = 13
    """A document matches a text if it contains this many consecutive words of it, or all words of a shorter text."""
    min_words: Annotated[int, Field(ge=2, le=50), NUMBER] = 6
    """Texts with fewer words ("Where are you going?") are common phrases. They match only a whole sentence of a
    document, are counted separately and are never a reason to drop."""
    min_sentence_words: Annotated[int, Field(ge=1, le=50), NUMBER] = 1
    """Ignore texts with fewer words."""
    drop_passages: bool = False
    """Also drop documents that contain a passage. SQuAD and QNLI passages are from Wikipedia; the paper keeps them."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_the_action(cls, given: Any) -> Any:
        if given is False:
            return {"action": "off"}  # YAML parses a bare `off` as false
        return {"action": given} if isinstance(given, str) else given

    @field_validator("benchmarks")
    @classmethod
    def _benchmarks_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not is_custom(name):
                find(name)
        return names


class CorpusSettings(Settings):
    """The `corpus` section of params.yaml."""

    sources: tuple[AnySource, ...] = Field(min_length=1, max_length=MOST_ELEMENTS)
    """Sources of text, in order."""
    min_words: Count = 20
    """Drop documents with fewer words. In scripts without spaces between words, four characters count as a word."""
    min_sentences: Count = 2
    """Drop documents with fewer sentences; next-sentence prediction needs at least two."""
    max_symbol_share: Share = 0.5
    """Drop documents in which a larger share of the words contains no letter, such as columns of numbers."""
    drop_duplicates: bool = True
    """Keep only the first of documents that differ only in case and whitespace."""
    gates: QualitySettings = QualitySettings()
    """Filters for script, language and repetition."""
    near_duplicates: NearDuplicateSettings | None = NearDuplicateSettings()
    """Keep only the first of a group of near duplicates; null keeps near duplicates."""
    contamination: ContaminationSettings = ContaminationSettings()
    """Check for texts of the benchmarks' dev and test files; `report`, `drop` and `off` set only the action."""
    shuffle_words: bool = False
    """Negative control: permute all words of the corpus but keep the length of every sentence and document, so that
    only word frequencies can be learned. Needs memory for the whole corpus."""
    shuffle_seed: Seed = 0
    """Random seed of the permutation."""
    unit_bytes: Annotated[int, Field(ge=1000, le=1024 * MEBIBYTE), NUMBER] = 8 * MEBIBYTE
    """Size of a partition, the unit of cleaning: a part of a large file, or a group of small files. A restart repeats
    unfinished partitions."""
    shard_bytes: Annotated[int, Field(ge=1000, le=1024 * MEBIBYTE), NUMBER] = 128 * MEBIBYTE
    """Size of corpus files: from about this size to twice as large; the last file of a source can be smaller."""
    scheduler: Line | None = Field(default=None, pattern=r"^(tcp|tls|ucx|inproc)://.+")
    """Scheduler address of a Dask cluster for cleaning (tcp://host:8786), which takes precedence over `cluster.pool`;
    null uses the section `cluster`."""
    exchange: Line | None = Field(default=None, pattern=r"^s3://[^/]+(/.*)?$")
    """s3://bucket/prefix for cleaned partitions, so that workers on other machines need no shared folder; null stores
    them in build/runs/corpus/units."""

    @field_validator("sources")
    @classmethod
    def _names_are_unique(cls, sources: tuple[Source, ...]) -> tuple[Source, ...]:
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two sources are named '{twice[0]}'")
        return sources
