"""data/FETCHED.json: the files that `cloze fetch` downloaded, their origin, and their digests.

The record is part of data/, so data.dvc pins it together with the files; no stage depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from model.common.files import digest_of, digest_of_file, read_json, write_json
from tasks.fetch.transfer import Fetched, one_line
from tasks.params.fetch import RECORD, AnyFetchSource

_TUNING = {"name", "to", "part_bytes", "num_connections"}  # settings that do not change the content


class FetchRecord:
    """The sources that were fetched into a data folder.

    An entry has door, from, revision, asked (a digest of the settings), fetched (when) and files, whose keys are paths
    relative to data/ and whose values are bytes, sha256, url, checked and etag.
    """

    def __init__(self, data_dir: Path, seen_path: Path) -> None:
        self._data = data_dir
        self._path = data_dir / RECORD
        self._seen_path = seen_path
        self._seen: dict[str, list[Any]] = read_json(seen_path) if seen_path.exists() else {}
        self.sources: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            try:
                self.sources = dict(read_json(self._path)["sources"])
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"data/{RECORD}: not a record of `cloze fetch` ({one_line(error)}); restore it with `dvc checkout`"
                ) from None

    def is_whole(self, source: AnyFetchSource) -> bool:
        """Check whether data/ holds the complete, unchanged files of the source.

        Raises:
            UserError: one of the files was changed.
        """
        entry = self.sources.get(source.name, {})
        if "replaces" in entry:  # the process was killed while it moved the files into place
            if not all(self._is_intact(name, row) for name, row in entry["files"].items()):
                return False
            self.placed(source.name)
        files = entry.get("files", {})
        for name, row in files.items():
            if (self._data / name).exists() and not self._is_intact(name, row):
                raise UserError(
                    f"data/{name}: was changed since `cloze fetch` brought it; move it away, or take the fetch source"
                    f" '{source.name}' out of params.yaml"
                )
        everything = bool(files) and all((self._data / name).exists() for name in files)
        return everything and entry["asked"] == asked(source) and entry["to"] == source.to

    def require_ours(self, source_name: str, to: str) -> None:
        """Refuse a target that holds files which this source did not create.

        Raises:
            UserError: it does; the message names one file.
        """
        entry = self.sources.get(source_name, {})
        ours = [entry.get("files", {}), entry.get("replaces", {})]
        target = self._data / to
        for parent in target.relative_to(self._data).parents:
            if (self._data / parent).is_file():
                raise UserError(f"data/{parent.as_posix()}: is a file, so nothing can be stored below it")
        for path in _files_in(target):
            name = path.relative_to(self._data).as_posix()
            if not any(name in files and self._is_intact(name, files[name]) for files in ours):
                where = "a place" if target.is_file() else "a folder"
                raise UserError(
                    f"data/{name}: exists, but fetch source '{source_name}' did not create it; move it away, or give"
                    f" the source {where} of its own (`to`)"
                )

    def has(self, source: AnyFetchSource, fetched: Fetched) -> bool:
        """Check whether exactly these files of the source are recorded and present in data/."""
        files = self.sources.get(source.name, {}).get("files", {})
        return self.is_whole(source) and files == _files(source.to, fetched)

    def placing(self, name: str, entry: dict[str, Any], fetched: Fetched) -> None:
        """Record the files before they are moved to data/`entry["to"]`; call `placed` after the move.

        Without the first of the two, a kill between the files and their record would leave files that nobody knows.
        """
        files = _files(entry["to"], fetched)
        before = self.sources.get(name, {})
        replaces = before.get("files", {}) | before.get("replaces", {})
        self.sources[name] = entry | {"revision": fetched.revision, "files": files, "replaces": replaces}
        write_json(self._path, {"sources": self.sources})

    def placed(self, name: str) -> None:
        """After the move: remove the files that were replaced, and remember the new ones."""
        entry = self.sources[name]
        for path, row in entry["replaces"].items():
            if path not in entry["files"] and self._is_intact(path, row):
                (self._data / path).unlink()
        del entry["replaces"]
        write_json(self._path, {"sources": self.sources})
        for path, row in entry["files"].items():
            self._note(path, row["sha256"])
        self.save_seen()

    def save_seen(self) -> None:
        """Save the size and time of verified files, so that unchanged ones are not read again."""
        write_json(self._seen_path, self._seen)

    def _is_intact(self, name: str, row: dict[str, Any]) -> bool:
        """Check whether data/ holds the file with these bytes; reads only files whose size or time changed."""
        path = self._data / name
        if not path.is_file() or path.stat().st_size != row["bytes"]:
            return False
        stat = path.stat()
        if self._seen.get(name, [])[:3] != [stat.st_size, stat.st_mtime_ns, stat.st_ino]:
            self._note(name, digest_of_file(path))
        return bool(self._seen[name][3] == row["sha256"])

    def _note(self, name: str, sha256: str) -> None:
        stat = (self._data / name).stat()
        self._seen[name] = [stat.st_size, stat.st_mtime_ns, stat.st_ino, sha256]


def asked(source: AnyFetchSource) -> str:
    """Digest of the settings that determine the content."""
    return digest_of(source.model_dump(mode="json", exclude=_TUNING))


def _files(to: str, fetched: Fetched) -> dict[str, dict[str, Any]]:
    rows = {(to if fetched.is_file else f"{to}/{file}"): asdict(row) for file, row in fetched.rows.items()}
    return {path: {key: value for key, value in row.items() if value != ""} for path, row in sorted(rows.items())}


def _files_in(target: Path) -> Iterator[Path]:
    if target.is_dir():
        yield from sorted(path for path in target.rglob("*") if not path.is_dir())
    elif target.exists():
        yield target
