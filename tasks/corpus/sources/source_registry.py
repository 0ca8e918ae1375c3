"""The source types of the corpus: the files that belong to each, and the functions that read and parse them.

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
    """How one type of source is read and parsed."""

    suffixes: tuple[str, ...]
    """Ends of the names of its files."""
    description: str
    """Its files, for messages."""
    read: Callable[[Any, FileChunk, Counter[str]], Iterator[Any]]
    """Yields the items that begin in a chunk, and counts refused ones by reason."""
    parse: Callable[[Any, Any], Draft | list[Draft]]
    """Documents of one item; raises Dropped."""
    splits: Callable[[Any, str], bool] = lambda _source, _name: False
    """Tells from (source, file name) whether parts of a file can be read alone."""
    prefix: str = ""
    """Start of the names of its files."""

    def is_file(self, name: str) -> bool:
        """Check whether a file of a folder belongs to the source, by its last name."""
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
