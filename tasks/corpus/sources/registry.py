"""The kinds of sources: which files are theirs, what of a file can be read alone, and what reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tasks.corpus.sources import books, mediawiki, tables, texts, wikiextractor
from tasks.corpus.sources.documents import Draft, Piece


@dataclass(frozen=True)
class Kind:
    """How one kind of source is read and parsed."""

    is_file: Callable[[str], bool]
    """Which files of a folder are of this kind, by their last name."""
    looks_like: str
    splits: Callable[[Any, str], bool]
    """Whether parts of a file can be read alone: (source, name of the file)."""
    read: Callable[[Any, Piece, Counter[str]], Iterator[Any]]
    """Items that begin in a piece; what it refuses it counts by reason."""
    parse: Callable[[Any, Any], Draft | list[Draft]]
    """Documents of one item; raises Dropped."""


def _ends_with(*suffixes: str) -> Callable[[str], bool]:
    return lambda name: name.endswith(suffixes)


def _always(_source: Any, _name: str) -> bool:
    return True


def _never(_source: Any, _name: str) -> bool:
    return False


KINDS: dict[str, Kind] = {
    "mediawiki": Kind(
        _ends_with(*mediawiki.SUFFIXES), ".xml.bz2 or .xml", _always, mediawiki.read, mediawiki.parse
    ),
    "parquet": Kind(_ends_with(*tables.PARQUET_SUFFIXES), ".parquet", _always, tables.read_parquet, tables.parse),
    "jsonl": Kind(_ends_with(*tables.JSONL_SUFFIXES), ".jsonl", tables.jsonl_splits, tables.read_jsonl, tables.parse),
    "csv": Kind(_ends_with(*tables.CSV_SUFFIXES), ".csv or .tsv", _never, tables.read_csv, tables.parse),
    "text": Kind(_ends_with(*texts.SUFFIXES), ".txt", _never, texts.read, texts.parse),
    "books": Kind(_ends_with(*books.SUFFIXES), ".txt, .zip or .tar", _never, books.read, books.parse),
    "wikiextractor": Kind(
        lambda name: name.startswith("wiki_"), "wiki_NN", _never, wikiextractor.read, wikiextractor.parse
    ),
}  # fmt: skip
