"""Units: what is cleaned at a time, and done again when it was not finished.

A unit is a part of a large file or a group of small ones. The list of units depends on the files and the settings,
never on who works on them. A unit's key names all that decides what comes of it, so a unit with a record need not be
done again, in this run or a later one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from model.common.files import digest_of
from tasks import versions
from tasks.corpus.inventory import digests, source_files
from tasks.corpus.sources.documents import Piece
from tasks.corpus.sources.registry import KINDS
from tasks.params.corpus import AnySource, CorpusSettings

Item = TypeVar("Item")

# Settings that decide what is chosen, where work is done or how it is packed, but not what comes of a unit.
_NOT_OF_CLEANING = {
    "sources", "drop_duplicates", "near_duplicates", "contamination", "shuffle_words", "shuffle_seed", "unit_bytes",
    "shard_bytes", "scheduler", "exchange",
}  # fmt: skip
_NOT_OF_SOURCE = {"path", "weight", "max_documents", "licence", "origin"}
_NAMES_COUNT = {"books", "text", "csv"}  # kinds whose files' names are ids, or say what is between columns


@dataclass(frozen=True)
class Unit:
    """Pieces of one source that are cleaned together."""

    key: str
    source: AnySource
    pieces: tuple[Piece, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of input."""
        return sum(piece.end - piece.start for piece in self.pieces)

    @property
    def label(self) -> str:
        """Which input it is, whatever that holds."""
        return label_of(self.source.name, self.pieces[0].name, self.pieces[0].start)


def label_of(source: str, name: str, start: int) -> str:
    """What stays the same of a unit when its content changes."""
    return f"{source}: {name}" + (f" from {start:,}" if start else "")


def list_units(settings: CorpusSettings, data_dir: Path, cache: Path | None = None, num_threads: int = 1) -> list[Unit]:
    """The units of all sources, in order.

    Args:
        settings: the section `corpus` of params.yaml.
        data_dir: the folder that the sources' paths start from.
        cache: a file that remembers digests of files.
        num_threads: files that are read at a time for their digests.

    Raises:
        UserError: a source is missing.
    """
    cleaning = _cleaning(settings)
    files = [(source, file) for source in settings.sources for file in source_files(source, data_dir)]
    contents = digests([file for _, file in files], settings.unit_bytes, cache, num_threads)
    content_of = {file.location: digest for (_, file), digest in zip(files, contents)}
    units = []
    for source in settings.sources:
        own = [file for owner, file in files if owner is source]
        row = source.model_dump(mode="json", exclude=_NOT_OF_SOURCE)
        for pieces in _pieces(source, own, settings.unit_bytes):
            inputs = [_input(source, piece, content_of[piece.location], settings.unit_bytes) for piece in pieces]
            content = {"version": versions.corpus, "source": row, "cleaning": cleaning, "inputs": inputs}
            units.append(Unit(digest_of(content), source, tuple(pieces)))
    return units


def grouped(
    items: Iterable[Item],
    size_of: Callable[[Item], int],
    label_of: Callable[[Item], str],
    smallest: int,
    largest: int,
) -> Iterator[list[Item]]:
    """Neighbours in groups of `smallest` to `largest` bytes; the last one, and single items, may be outside.

    Between the two, an item's label decides whether a group begins with it, so that one item more or less changes the
    groups near it alone.
    """
    group: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if group and (
            total + size > largest
            or (total >= smallest and _share(label_of(item)) * (largest - smallest) < 2 * size)
        ):  # fmt: skip
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def _pieces(source: AnySource, files: Sequence[Piece], unit_bytes: int) -> Iterator[list[Piece]]:
    """The pieces of each unit: parts of files that are larger than a unit, and groups of the others between them."""
    small: list[Piece] = []

    def groups() -> Iterator[list[Piece]]:
        yield from grouped(small, lambda file: file.size, lambda file: file.name, unit_bytes // 2, unit_bytes)
        small.clear()

    for file in files:
        if file.size <= unit_bytes or not KINDS[source.kind].splits(source, file.name):
            small.append(file)
            continue
        yield from groups()
        for start in range(0, file.size, unit_bytes):
            yield [replace(file, start=start, end=min(start + unit_bytes, file.size))]
    yield from groups()


def _input(source: AnySource, piece: Piece, content: list[str], unit_bytes: int) -> Any:
    """What decides what is read of a piece."""
    if piece.start == 0 and piece.is_last:
        return [digest_of(content), piece.name] if source.kind in _NAMES_COUNT else [digest_of(content)]
    if source.kind == "jsonl" and len(content) > 1:
        # Its own parts and those that its last row may reach into: lines that are appended change the last units only.
        last = (piece.end + source.max_row_bytes) // unit_bytes  # type: ignore[union-attr]
        begin = max(0, piece.start - 1) // unit_bytes
        return [content[begin : last + 1], piece.start]
    return [digest_of(content), piece.start, piece.end]


def _cleaning(settings: CorpusSettings) -> dict[str, Any]:
    """The settings that decide what comes of a unit, whatever its source."""
    content = settings.model_dump(mode="json", exclude=_NOT_OF_CLEANING)
    most_documents = content["gates"].pop("max_documents_with_sentence")
    near = settings.near_duplicates
    return content | {
        "signatures": [near.shingle_words, near.num_hashes] if near else None,
        "sentence_digests": most_documents is not None,
    }


def _share(label: str) -> float:
    """A number in [0, 1) that depends on the label alone."""
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=6).digest(), "big") / 2**48
