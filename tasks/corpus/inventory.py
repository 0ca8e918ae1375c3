"""The files of the sources, and digests of their content."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from model.common.files import write_json
from tasks.corpus.sources.documents import Piece
from tasks.corpus.sources.registry import KINDS
from tasks.params.corpus import Source
from tasks.project.workspace import read_record
from tasks.s3.shared_objects import retry

_READ_BYTES = 1 << 20


def source_files(source: Source, data_dir: Path) -> list[Piece]:
    """The files of a source, sorted by name, each as one piece.

    Raises:
        UserError: there are none.
    """
    if source.path.startswith("s3://"):
        return _objects(source)
    kind = KINDS[source.kind]
    if any(mark in source.path for mark in "*?["):
        found = sorted(path for path in data_dir.glob(source.path) if path.is_file())
    elif (data_dir / source.path).is_dir():
        found = sorted(
            path for path in (data_dir / source.path).rglob("*") if kind.is_file(path.name) and path.is_file()
        )
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
    return [Piece.whole(path.absolute(), path.relative_to(data_dir.parent).as_posix()) for path in found]


def digests(files: Sequence[Piece], part_bytes: int, cache: Path | None, num_threads: int) -> list[list[str]]:
    """SHA-256 of every part of `part_bytes` of every file; of an object on S3, its ETag for all of it.

    Args:
        files: whole files.
        part_bytes: the size of a part.
        cache: a JSON file that remembers digests of files whose size and time of modification have not changed.
        num_threads: files that are read at a time.
    """
    known: dict[str, Any] = read_record(cache).get("files", {}) if cache else {}
    states = [f"{file.size} {file.stamp} {part_bytes}" for file in files]
    with ThreadPoolExecutor(num_threads) as threads:
        results = list(threads.map(lambda file, state: _digests(file, state, part_bytes, known), files, states))
    if cache:
        entries = zip(files, states, results)
        write_json(cache, {"files": {file.location: [state, found] for file, state, found in entries}})
    return results


def _digests(file: Piece, state: str, part_bytes: int, known: dict[str, Any]) -> list[str]:
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


def _objects(source: Source) -> list[Piece]:
    kind = KINDS[source.kind]
    is_pattern = any(mark in source.path for mark in "*?[")
    start = source.path
    if is_pattern:
        start = source.path[: min(source.path.find(mark) for mark in "*?[" if mark in source.path)]
    objects = retry(start, lambda client: client.list(start))
    found = [Piece(entry.location, entry.location, entry.size, 0, entry.size, entry.etag) for entry in objects]
    if is_pattern:
        found = [piece for piece in found if fnmatch.fnmatchcase(piece.location, source.path)]
    else:
        folder = source.path.rstrip("/") + "/"
        found = [
            piece
            for piece in found
            if piece.location == source.path
            or (piece.location.startswith(folder) and kind.is_file(piece.location.rsplit("/", 1)[-1]))
        ]
    if not found:
        raise UserError(f"{source.path}: no {kind.looks_like} object for the corpus source '{source.name}'")
    return sorted(found, key=lambda piece: piece.location)
