"""Earlier versions of a stage's output in DVC's cache: jobs that a stage still needs take their files from there."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from model.common.files import atomic_file, read_json
from tasks.dvc.integrity import Recorded, cache_of, damage_line, files_of, md5_of, object_path, outputs
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml

Accept = Callable[[dict[str, Any]], bool]


class EarlierOutputs:
    """The versions of a stage's output in dvc.lock and in DVC's run cache, newest first.

    They are read without DVC, which holds its lock while `dvc repro` runs a stage.

    Args:
        may_write: False if nothing may be copied into the project.
    """

    def __init__(self, project: Project, stage: str, may_write: bool = True) -> None:
        self._project, self._output, self.may_write = project, f"build/{stage}", may_write
        self._objects = cache_of(project)

    def find(self, folder: str, marker: str, accept: Accept) -> dict[str, Recorded] | None:
        """Return the files of a folder, by their names in it, in the newest version that the cache has whole.

        Args:
            folder: relative to the output.
            marker: a JSON file, relative to the output, whose content `accept` accepts in that version.
        """
        for version in self._versions:
            if (
                marker not in version
                or not self.path(version[marker]).is_file()
                or not accept(self.read(version[marker]))
            ):
                continue
            files = {
                name.removeprefix(f"{folder}/"): file for name, file in version.items() if name.startswith(f"{folder}/")
            }
            if files and all(self.path(file).is_file() for file in files.values()):
                return files
        return None

    def path(self, file: Recorded) -> Path:
        """Path of a file's object in the cache."""
        return object_path(self._objects, file.md5)

    def read(self, file: Recorded) -> dict[str, Any]:
        """Read a JSON file.

        Raises:
            UserError: it is damaged.
        """
        self._check(file)
        content: dict[str, Any] = read_json(self.path(file))
        return content

    def copy(self, files: Mapping[str, Recorded], target: Path) -> None:
        """Copy files into a directory, in the order of their names.

        Raises:
            UserError: one is damaged.
        """
        for name, file in sorted(files.items()):
            self._check(file)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(target / name) as partial:
                shutil.copyfile(self.path(file), partial)

    def _check(self, file: Recorded) -> None:
        if md5_of(self.path(file)) != file.md5:
            raise UserError(damage_line(self._project, self._objects, file))

    @functools.cached_property
    def _versions(self) -> list[dict[str, Recorded]]:
        """Files of each version, by their names relative to the output."""
        entries = sorted(self._objects.parents[1].glob("runs/??/*/*"), key=lambda path: -path.stat().st_mtime_ns)
        digests = [outputs(self._project).get(self._output, "")]
        for path in entries:
            if self._output in path.read_text(encoding="utf-8"):
                digests += [out["md5"] for out in read_yaml(path).get("outs", []) if out["path"] == self._output]
        versions = []
        for digest in filter(None, dict.fromkeys(digests)):
            _, *files = files_of({self._output: digest}, self._objects)
            versions.append({file.path.removeprefix(f"{self._output}/"): file for file in files})
        return versions
