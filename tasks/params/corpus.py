"""The section `corpus` of params.yaml: sources and filters of the pre-training text."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from model.benchmarks.custom_task import is_custom
from model.benchmarks.table import BENCHMARKS, find
from model.common.config_base import Settings

MEBIBYTE = 1 << 20
_MISSED = 0.005  # share of the pairs at the threshold that the bands may miss
_STANDARD_ERRORS = 2.0


class Source(Settings):
    """Settings of every source type."""

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
    """Copies of each document in the corpus: 2 repeats each one, 0.5 keeps every second one (chosen by its hash)."""
    max_documents: int | None = Field(default=None, ge=1)
    """Read at most this many documents, from the start; null reads all."""
    licence: str = ""
    """License of the text, for the data card."""
    origin: str = ""
    """Origin of the text, an address or a citation, for the data card."""

    @field_validator("path")
    @classmethod
    def _below_data(cls, path: str) -> str:
        parts = PurePosixPath(path)
        if not path.startswith("s3://") and (parts.is_absolute() or ".." in parts.parts or "\0" in path):
            raise ValueError("expected a path below data/, like wikipedia/en, or s3://bucket/prefix")
        return path


class Prose(Settings):
    """Rules that tell the prose of an encyclopedia from captions, headings and list entries."""

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
    """Treat quotation marks around a field as delimiters; many .tsv files need it off."""
    max_field_bytes: int = Field(default=8 * MEBIBYTE, ge=1000, le=1024 * MEBIBYTE)
    """A longer field (characters) is refused: mostly a quotation mark that nothing closes."""


class TextSource(Source, Prose):
    """Plain text in UTF-8 that is no book, .txt, .txt.gz or .txt.bz2; a line break ends a paragraph."""

    kind: Literal["text"]
    documents: Literal["files", "blocks", "lines"] = "files"
    """Unit of a document: a file, the lines between blank lines (as in BERT's original preparation), or a line."""
    max_document_bytes: int = Field(default=64 * MEBIBYTE, ge=1000)
    """Larger documents are skipped and counted."""
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
    """Unit of a document: a chapter, or the whole book."""
    heading_words: tuple[str, ...] = (
        "chapter", "book", "part", "volume", "letter", "canto", "stave", "act", "scene", "section",
        "kapitel", "chapitre", "capítulo", "capitolo", "hoofdstuk", "rozdział", "глава",
    )  # fmt: skip
    """A short line that starts with one of them and a number is a chapter's heading."""
    max_book_bytes: int = Field(default=64 * MEBIBYTE, ge=1000)
    """A larger file is an error; inside an archive it is skipped and counted."""


AnySource = Annotated[
    MediaWikiSource | ParquetSource | JsonlSource | CsvSource | TextSource | BooksSource | WikiextractorSource,
    Field(discriminator="kind"),
]


class QualitySettings(Settings):
    """Quality filters besides the minimum length; null switches a filter off."""

    min_script_share: float | None = Field(default=0.5, gt=0, le=1)
    """Drop documents with a smaller share of letters in the scripts of their source's language ("wrong script")."""
    check_language: bool = False
    """Drop documents in which py3langid detects another language than their source's ("wrong language"). It errs on
    short documents and between related languages."""
    max_repeated_sentences: float | None = Field(default=0.3, ge=0, le=1)
    """Drop documents in which a larger share of the sentences occurred before ("repeats itself"). As Rae et al. 2021
    (arXiv:2112.11446, table A1) for lines."""
    max_repeated_words: float | None = Field(default=0.2, ge=0, le=1)
    """Drop documents in which a larger share of the words is in repeated sentences (same source)."""
    max_documents_with_sentence: int | None = Field(default=None, ge=1)
    """Remove sentences that occur in more documents of the corpus than this ("boilerplate sentence")."""


class NearDuplicateSettings(Settings):
    """Detection of near duplicates."""

    threshold: float = Field(default=0.8, ge=0.5, le=0.99)
    """Drop a document whose runs of words are to this share (Jaccard similarity) those of an earlier one. The
    similarity is estimated and decided two standard errors lower (at 0.73 by default), so that of the pairs exactly at
    the threshold 97 % are found."""
    shingle_words: int = Field(default=5, ge=1, le=20)
    """Length of the runs."""
    num_hashes: int = Field(default=128, ge=64, le=512)
    """Bytes of a signature. More estimate better: the standard error is 0.035 with 128, 0.025 with 256."""

    @property
    def decision(self) -> float:
        """The estimate from which on a pair counts as near duplicates."""
        error = math.sqrt(self.threshold * (1 - self.threshold) / self.num_hashes)
        return self.threshold - _STANDARD_ERRORS * error

    @property
    def bands(self) -> tuple[int, int]:
        """(Bands, rows of a band): as many rows as find all but 0.5 % of the pairs at the threshold."""
        for rows in range(8, 0, -1):
            bands = math.ceil(math.log(_MISSED) / math.log1p(-(self.threshold**rows)))
            if rows * bands <= self.num_hashes:
                return bands, rows
        raise AssertionError("one row always fits")


class ContaminationSettings(Settings):
    """Texts of the benchmarks' dev and test sets in the corpus; a single word sets the action."""

    action: Literal["report", "drop", "off"] = "report"
    """report counts them, drop also drops the documents that hold one, off does not look."""
    benchmarks: tuple[str, ...] = tuple(BENCHMARKS)
    """Whose files are looked for, where they are in data/; an own task by its YAML file (tasks/letters.yaml), once
    dvc.yaml names data/tasks among the deps of corpus."""
    run_words: int = Field(default=13, ge=5, le=50)
    """A text is in a document if so many of its words are, in a row; or all, where it has fewer."""
    min_words: int = Field(default=6, ge=2, le=50)
    """A text with fewer words ("Where are you going?") is said everywhere: it counts only where it is a whole sentence
    of the document, is counted apart and is never a reason to drop."""
    min_sentence_words: int = Field(default=1, ge=1, le=50)
    """A text with fewer words does not count at all."""
    drop_passages: bool = False
    """Also drop documents that contain a passage (SQuAD's and QNLI's are Wikipedia paragraphs, kept by the paper)."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_the_action(cls, given: Any) -> Any:
        if given is False:
            return {"action": "off"}  # YAML reads a bare `off` so
        return {"action": given} if isinstance(given, str) else given

    @field_validator("benchmarks")
    @classmethod
    def _benchmarks_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not is_custom(name):
                find(name)
        return names


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
    gates: QualitySettings = QualitySettings()
    """Quality filters: script, language, repetition."""
    near_duplicates: NearDuplicateSettings | None = NearDuplicateSettings()
    """Keep only the first of documents that are nearly or wholly equal; null keeps those that are nearly equal."""
    contamination: ContaminationSettings = ContaminationSettings()
    """Texts of the benchmarks' dev and test files in the corpus; `report`, `drop` and `off` are short forms."""
    shuffle_words: bool = False
    """The negative control: permute all words of the whole corpus, keeping the number of words of every sentence
    and document, so that only how often each word occurs is left to learn. Holds the corpus in memory."""
    shuffle_seed: int = Field(default=0, ge=0)
    """The key of that permutation."""
    unit_bytes: int = Field(default=8 * MEBIBYTE, ge=1000, le=1024 * MEBIBYTE)
    """Size of a partition, the input that a process cleans at a time: a part of a large file, or a group of small ones.
    A restart repeats unfinished partitions."""
    shard_bytes: int = Field(default=128 * MEBIBYTE, ge=1000, le=1024 * MEBIBYTE)
    """Files of the corpus have about this size to twice as much; a source's last one may be smaller."""
    scheduler: str | None = Field(default=None, pattern=r"^(tcp|tls|ucx|inproc)://.+")
    """Address of a Dask cluster that cleans (tcp://host:8786); null cleans in processes of this machine."""
    exchange: str | None = Field(default=None, pattern=r"^s3://[^/]+(/.*)?$")
    """s3://bucket/prefix where cleaned partitions are stored, so that workers on other machines need no common folder;
    null stores them in build/runs/corpus/units."""

    @field_validator("sources")
    @classmethod
    def _names_are_unique(cls, sources: tuple[Source, ...]) -> tuple[Source, ...]:
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two sources are named '{twice[0]}'")
        return sources
