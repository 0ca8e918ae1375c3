"""Files on their way to MLflow: copies, so that they stay as they are until they are sent; hard links to weights."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

WEIGHTS = ".safetensors"
_FOLDER = "files"
_PARTIAL = ".partial"


class Spool:
    """The files of one entry that were not sent yet, at their places in the artifacts of its MLflow run.

    Args:
        folder: the directory of the entries.
        key: the entry's key.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder / _FOLDER / key

    def add(self, path: Path, where: str) -> None:
        """Add a file, or the files of a directory, if it exists.

        Args:
            where: directory in the run's artifacts; empty for their root.
        """
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file():
                name = Path(file.name) if file == path else file.relative_to(path)
                target = self._folder / where / name
                target.parent.mkdir(parents=True, exist_ok=True)
                partial = target.with_name(target.name + _PARTIAL)
                partial.unlink(missing_ok=True)
                try:
                    (link_or_copy if file.suffix == WEIGHTS else shutil.copyfile)(file, partial)
                    partial.replace(target)
                finally:
                    partial.unlink(missing_ok=True)  # also if both are the same file: replace() does nothing then

    def files(self) -> list[tuple[Path, str]]:
        """List the files, each with its directory in the run's artifacts."""
        files = [path for path in sorted(self._folder.rglob("*")) if path.is_file() and path.suffix != _PARTIAL]
        return [(file, file.parent.relative_to(self._folder).as_posix().removeprefix(".")) for file in files]

    def remove(self, file: Path, sent: os.stat_result) -> None:
        """Remove a file that was sent, unless another one has replaced it since its status was `sent`."""
        with contextlib.suppress(FileNotFoundError):  # it was moved
            now = file.stat()
            if (now.st_ino, now.st_mtime_ns) == (sent.st_ino, sent.st_mtime_ns):
                file.unlink()

    @staticmethod
    def tidy(folder: Path) -> None:
        """Remove empty directories of all entries in `folder`. Nothing may add files meanwhile."""
        for path in sorted((folder / _FOLDER).rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to a file, or a copy on another file system."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
