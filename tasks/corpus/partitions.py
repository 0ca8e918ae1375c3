"""Find the files of each source and divide them into partitions, the units of cleaning work.

A partition is a part of a large file or a group of small files. The list of partitions depends only on files and
settings. A partition's key depends on everything that determines its content, so a partition with a record is never
cleaned again. An interrupted partition is cleaned from its beginning.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from model.common.errors import UserError
from model.common.files import digest_of, fraction_of
from model.common.state_files import read_state, write_state
from tasks import versions
from tasks.corpus.sources.file_chunks import FileChunk
from tasks.corpus.sources.source_registry import SOURCE_TYPES
from tasks.params.corpus import AnySource, CorpusSettings, Source
from tasks.s3.shared_objects import retry

Item = TypeVar("Item")
_READ_BYTES = 1 << 20

# Settings that affect selection, scheduling or output files, but not the result of cleaning a partition.
_NOT_OF_CLEANING = {
    "sources", "drop_duplicates", "near_duplicates", "contamination", "shuffle_words", "shuffle_seed", "unit_bytes",
    "shard_bytes", "scheduler", "exchange",
}  # fmt: skip
_NOT_OF_SOURCE = {"path", "weight", "max_documents", "license", "origin"}
_NAMES_COUNT = {"books", "text", "csv"}  # the file name matters, as document id or for the delimiter


@dataclass(frozen=True)
class Partition:
    """File chunks of one source that are cleaned together."""

    key: str
    source: AnySource
    chunks: tuple[FileChunk, ...]

    @property
    def num_bytes(self) -> int:
        return sum(chunk.end - chunk.start for chunk in self.chunks)

    @property
    def label(self) -> str:
        """Name of the input; does not depend on its content."""
        first = self.chunks[0]
        return f"{self.source.name}: {first.name}" + (f" from {first.start:,}" if first.start else "")


def list_partitions(
    settings: CorpusSettings, data_dir: Path, cache: Path | None = None, num_threads: int = 1
) -> list[Partition]:
    """List the partitions of all sources, in order.

    File checksums are computed by `num_threads` threads and cached in the file `cache`.

    Raises:
        UserError: a source is missing.
    """
    cleaning = _cleaning(settings)
    files_of = {source.name: source_files(source, data_dir) for source in settings.sources}
    files = [file for own in files_of.values() for file in own]
    contents = digests(files, settings.unit_bytes, cache, num_threads)
    content_of = {file.location: digest for file, digest in zip(files, contents)}
    partitions = []
    for source in settings.sources:
        row = source.model_dump(mode="json", exclude=_NOT_OF_SOURCE)
        for chunks in _chunks(source, files_of[source.name], settings.unit_bytes):
            inputs = [_input(source, chunk, content_of[chunk.location], settings.unit_bytes) for chunk in chunks]
            content = {"version": versions.corpus, "source": row, "cleaning": cleaning, "inputs": inputs}
            partitions.append(Partition(digest_of(content), source, tuple(chunks)))
    return partitions


def grouped(
    items: Iterable[Item], size_of: Callable[[Item], int], label_of: Callable[[Item], str], smallest: int, largest: int
) -> Iterator[list[Item]]:
    """Group consecutive items into `smallest` to `largest` bytes, except for the last group and oversized items.

    Within that range, the hash of an item's label decides whether the item starts a new group, so adding or removing an
    item changes only nearby groups.
    """
    group: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        may_begin = total >= smallest and fraction_of(label_of(item).encode()) * (largest - smallest) < 2 * size
        if group and (total + size > largest or may_begin):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def _chunks(source: AnySource, files: Sequence[FileChunk], unit_bytes: int) -> Iterator[list[FileChunk]]:
    def is_large(file: FileChunk) -> bool:
        return file.size > unit_bytes and SOURCE_TYPES[source.kind].splits(source, file.name)

    for are_large, group in itertools.groupby(files, is_large):
        if not are_large:
            yield from grouped(group, lambda file: file.size, lambda file: file.name, unit_bytes // 2, unit_bytes)
            continue
        for file in group:
            for start in range(0, file.size, unit_bytes):
                yield [replace(file, start=start, end=min(start + unit_bytes, file.size))]


def _input(source: AnySource, chunk: FileChunk, content: list[str], unit_bytes: int) -> Any:
    if chunk.start == 0 and chunk.is_last:
        return [digest_of(content), chunk.name] if source.kind in _NAMES_COUNT else [digest_of(content)]
    if source.kind == "jsonl" and len(content) > 1:
        # Parts that the chunk and its last row cover; appending lines changes only the last partitions.
        last = (chunk.end + source.max_row_bytes) // unit_bytes  # type: ignore[union-attr]
        begin = max(0, chunk.start - 1) // unit_bytes
        return [content[begin : last + 1], chunk.start]
    return [digest_of(content), chunk.start, chunk.end]


def _cleaning(settings: CorpusSettings) -> dict[str, Any]:
    """Return the settings that affect the cleaning of every source."""
    content = settings.model_dump(mode="json", exclude=_NOT_OF_CLEANING)
    most_documents = content["gates"].pop("max_documents_with_sentence")
    near = settings.near_duplicates
    return content | {
        "signatures": [near.shingle_words, near.num_hashes] if near else None,
        "sentence_digests": most_documents is not None,
    }


def source_files(source: Source, data_dir: Path) -> list[FileChunk]:
    """List the files of a source, sorted by name, each as one chunk.

    Raises:
        UserError: the source has no files.
    """
    kind = SOURCE_TYPES[source.kind]
    prefix = re.split(r"[*?[]", source.path, maxsplit=1)[0]  # the whole path unless it is a glob pattern
    if source.path.startswith("s3://"):
        return _objects(source, prefix)
    path = data_dir / source.path
    if prefix != source.path:
        found = sorted(data_dir.glob(source.path))
    elif path.is_dir():
        found = sorted(file for file in path.rglob("*") if kind.is_file(file.name))
    elif path.is_file():
        found = [path]
    else:
        raise UserError(
            f"{data_dir.name}/{source.path}: missing, but the corpus source '{source.name}' reads it; "
            "add the file, or run `cloze sample` to create the sample data"
        )
    found = [file for file in found if file.is_file()]
    if not found:
        raise UserError(
            f"{data_dir.name}/{source.path}: no {kind.description} file for the corpus source '{source.name}'"
        )
    return [FileChunk.whole(file.absolute(), file.relative_to(data_dir.parent).as_posix()) for file in found]


def digests(files: Sequence[FileChunk], part_bytes: int, cache: Path | None, num_threads: int) -> list[list[str]]:
    """Compute the SHA-256 of each part (`part_bytes` bytes) of each file; an S3 object has only its ETag.

    The JSON file `cache` stores the checksums of files until their size or modification time changes.
    """
    known: dict[str, Any] = read_state(cache).get("files", {}) if cache else {}
    states = [f"{file.size} {file.stamp} {part_bytes}" for file in files]
    with ThreadPoolExecutor(num_threads) as threads:
        results = list(threads.map(lambda file, state: _digests(file, state, part_bytes, known), files, states))
    if cache:
        entries = zip(files, states, results)
        write_state(cache, {"files": {file.location: [state, found] for file, state, found in entries}})
    return results


def _digests(file: FileChunk, state: str, part_bytes: int, known: dict[str, Any]) -> list[str]:
    if file.location.startswith("s3://"):
        return [file.stamp]
    entry = known.get(file.location)
    if entry and entry[0] == state:
        return list(entry[1])
    found = []
    with file.open() as opened:
        for start in range(0, max(1, file.size), part_bytes):
            digest = hashlib.sha256()
            for at in range(start, min(start + part_bytes, file.size), _READ_BYTES):
                digest.update(opened.read(min(_READ_BYTES, start + part_bytes - at)))
            found.append(digest.hexdigest())
    file.check_unchanged()
    return found


def _objects(source: Source, prefix: str) -> list[FileChunk]:
    kind = SOURCE_TYPES[source.kind]
    folder = source.path.rstrip("/") + "/"

    def belongs(location: str) -> bool:
        if prefix != source.path:
            return fnmatch.fnmatchcase(location, source.path)
        return location == source.path or (location.startswith(folder) and kind.is_file(location.rsplit("/", 1)[-1]))

    objects = [entry for entry in retry(prefix, lambda client: client.list(prefix)) if belongs(entry.location)]
    if not objects:
        raise UserError(f"{source.path}: no {kind.description} object for the corpus source '{source.name}'")
    found = [FileChunk(entry.location, entry.location, entry.size, 0, entry.size, entry.etag) for entry in objects]
    return sorted(found, key=lambda chunk: chunk.location)
