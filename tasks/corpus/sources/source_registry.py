"""Registry of source types, with their file names and the functions that read and parse them.

To add a source type, write a module with `read` and `parse`, and add an entry to SOURCE_TYPES.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tasks.corpus.sources import books, mediawiki, plain_text, tables, wikiextractor
from tasks.corpus.sources.file_chunks import Draft, FileChunk


@dataclass(frozen=True)
class SourceType:
    """File names and functions of one source type."""

    suffixes: tuple[str, ...]
    """File name suffixes."""
    description: str
    """Description of the files, for messages."""
    read: Callable[[Any, FileChunk, Counter[str]], Iterator[Any]]
    """Yields the items that begin in a chunk, and counts rejected items by reason."""
    parse: Callable[[Any, Any], Draft | list[Draft]]
    """Converts an item to documents; raises Dropped for items without a document."""
    splits: Callable[[Any, str], bool] = lambda _source, _name: False
    """Returns, given (source, file name), whether parts of the file can be read independently."""
    prefix: str = ""
    """File name prefix."""

    def is_file(self, name: str) -> bool:
        """Check by its name whether a file in the source folder belongs to the source."""
        return name.startswith(self.prefix) and name.endswith(self.suffixes)


SOURCE_TYPES: dict[str, SourceType] = {
    "mediawiki": SourceType(mediawiki.SUFFIXES, ".xml.bz2 or .xml", mediawiki.read, mediawiki.parse, lambda *_: True),
    "parquet": SourceType((".parquet",), ".parquet", tables.read_parquet, tables.parse, lambda *_: True),
    "jsonl": SourceType(tables.JSONL_SUFFIXES, ".jsonl", tables.read_jsonl, tables.parse, tables.jsonl_splits),
    "csv": SourceType(tables.CSV_SUFFIXES, ".csv or .tsv", tables.read_csv, tables.parse),
    "text": SourceType(plain_text.SUFFIXES, ".txt", plain_text.read, plain_text.parse),
    "books": SourceType(books.SUFFIXES, ".txt, .zip or .tar", books.read, books.parse),
    "wikiextractor": SourceType(("",), "wiki_NN", wikiextractor.read, wikiextractor.parse, prefix="wiki_"),
}
