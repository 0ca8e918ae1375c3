"""Examples of what was left out, and sentences that many documents share: what a person looks at to trust counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import numpy as np
import pyarrow.parquet

from tasks.corpus.partition_store import PartitionRecord, PartitionStore
from tasks.corpus.sources.file_chunks import Document

MOST_EXAMPLES = 5
_SHOWN_CHARACTERS = 200
_MOST_SENTENCES = 1 << 20  # of a partition: what comes after is not counted
_MOST_REPEATED = 50  # of a partition


class DropExample(TypedDict):
    """One document that was left out."""

    id: str
    title: str
    text: str
    """Its first 200 characters."""
    note: str
    """Further information, such as the similar document."""


class DropExamples:
    """Up to five for each reason, the first ones."""

    def __init__(self, examples: Mapping[str, Sequence[DropExample]] | None = None) -> None:
        self.by_reason: dict[str, list[DropExample]] = {}
        if examples:
            self.update(examples)

    def add(self, reason: str, identifier: str, title: str, text: Iterable[str], note: str = "") -> None:
        """Keep a document, given as its sentences or paragraphs, unless five are kept already."""
        kept = self.by_reason.setdefault(reason, [])
        if len(kept) < MOST_EXAMPLES:
            kept.append({"id": identifier, "title": title[:_SHOWN_CHARACTERS], "text": shown(text), "note": note})

    def update(self, examples: Mapping[str, Sequence[DropExample]]) -> None:
        """Append other examples, up to five per reason."""
        for reason, found in examples.items():
            kept = self.by_reason.setdefault(reason, [])
            kept += found[: MOST_EXAMPLES - len(kept)]


def shown(text: Iterable[str]) -> str:
    """The first 200 characters of a document's lines."""
    joined = ""
    for line in text:
        joined += f" {line}" if joined else line
        if len(joined) > _SHOWN_CHARACTERS:
            return joined[:_SHOWN_CHARACTERS] + "…"
    return joined


def read_document(record: PartitionRecord, row: int, store: PartitionStore) -> tuple[str, str, list[str]]:
    """(Id, title, sentences) of one of a unit's documents."""
    for file in record["parts"]:
        if row < file["documents"]:
            with store.fetch(file) as path, pyarrow.parquet.ParquetFile(path) as opened:
                for group in range(opened.num_row_groups):
                    num_rows = opened.metadata.row_group(group).num_rows
                    if row < num_rows:
                        table = opened.read_row_group(group, columns=["id", "title", "sentences"]).slice(row, 1)
                        identifier, title, sentences = (column[0].as_py() for column in table.columns)
                        return identifier, title, sentences
                    row -= num_rows
        row -= file["documents"]
    raise AssertionError("the partition has fewer documents")


class SharedSentences:
    """Counts the distinct documents of a partition that contain each sentence, in bounded memory."""

    def __init__(self) -> None:
        self._documents: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self._seen: set[int] = set()

    def add(self, document: Document, digest: int) -> None:
        """Count a document that is not equal to an earlier one."""
        if digest in self._seen or len(self._documents) >= _MOST_SENTENCES:
            return
        self._seen.add(digest)
        digests, places = np.unique(document.hashed.sentence_digests, return_index=True)
        for sentence, place in zip(digests.tolist(), places.tolist()):
            count = self._documents.get(sentence, 0) + 1
            self._documents[sentence] = count
            if count == 2 and sentence:
                self._texts[sentence] = shown([document.sentences[place]])

    def top(self) -> list[tuple[int, str]]:
        """(Documents, text) of sentences in two or more documents, the most frequent first."""
        found = sorted(((self._documents[sentence], text) for sentence, text in self._texts.items()), key=_order)
        return found[:_MOST_REPEATED]


def top_sentences(records: Iterable[PartitionRecord], number: int) -> list[tuple[int, str]]:
    """The most frequent ones of all partitions: (documents, text), at least so many."""
    counts: Counter[str] = Counter()
    for record in records:
        counts.update({text: documents for documents, text in record["repeated"]})
    return sorted(((count, text) for text, count in counts.items()), key=_order)[:number]


def _order(entry: tuple[int, str]) -> tuple[int, str]:
    return -entry[0], entry[1]
