"""Locates the files of a benchmark's splits: its default files or an alternative format, whichever exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model.benchmarks.table import Benchmark, HubFormat
from model.common.errors import UserError

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".json", ".txt", ".conll")
# A split of the hub: sharded files (`huggingface-cli download`, `cloze fetch`), one file, or a folder (the branch
# refs/convert/parquet, and `cloze fetch` of one split)
_SPLIT_PATTERNS = ("{}-*-of-*.parquet", "{}.parquet", "{}/*.parquet")


@dataclass(frozen=True)
class SourceFiles:
    """The files of one split, in order, and the benchmark with their column names."""

    name: str
    """Path of the (first) file relative to the data folder."""
    paths: tuple[Path, ...]
    """At least one; the expected file if none exists."""
    row: Benchmark
    exists: bool

    @property
    def ending(self) -> str:
        """Extension that determines the format: that of the files, or of the training file if theirs is unknown."""
        suffix = self.paths[0].suffix
        return suffix if suffix in ENDINGS else Path(self.row.train).suffix


def train_source(row: Benchmark, data_dir: Path) -> SourceFiles:
    return _find(row, data_dir, row.train, [form.train for form in row.forms])


def split_sources(row: Benchmark, data_dir: Path, split: str) -> dict[str, SourceFiles]:
    """Locate the rows of "dev" or "test", by suffix."""
    return {
        suffix: _find(row, data_dir, name, [getattr(form, split).get(suffix, "") for form in row.forms])
        for suffix, name in getattr(row, split).items()
    }


def files_of(row: Benchmark, data_dir: Path) -> list[tuple[str, Path]]:
    """List the files that fine-tuning reads, training first, as (name relative to the data folder, path).

    Raises:
        UserError: the training file or the first dev file is missing.
    """
    files: list[tuple[str, Path]] = []
    for number, source in enumerate([train_source(row, data_dir), *split_sources(row, data_dir, "dev").values()]):
        if source.exists:
            files += [(_relative(path, data_dir), path) for path in source.paths]
        elif number < 2:
            raise UserError(f"{source.paths[0]} is missing; the benchmark {row.name} needs it")
    return files


def train_bytes(row: Benchmark, data_dir: Path) -> int:
    """Return the size of the training files, from which the training time is estimated."""
    return sum(path.stat().st_size for path in train_source(row, data_dir).paths)


def matches(data_dir: Path, name: str) -> list[Path]:
    """Find the files of a name: the file itself, the matches of its `*`, or the Parquet files of a split."""
    if not name:
        return []
    if "*" in name:
        return sorted(path for path in data_dir.glob(name) if path.is_file())
    path = data_dir / name
    if path.suffix or path.is_file():
        return [path] if path.exists() else []
    found = (sorted(data_dir.glob(pattern.format(name))) for pattern in _SPLIT_PATTERNS)
    return next(filter(None, found), [])


def _find(row: Benchmark, data_dir: Path, name: str, names: Sequence[str]) -> SourceFiles:
    """Find the first existing files: those called `name`, or those of an alternative in `row.forms`, called `names`."""
    alternatives = list(zip(names, row.forms))
    early = [(other, _with_columns(row, form)) for other, form in alternatives if form.comes_first]
    late = [(other, _with_columns(row, form)) for other, form in alternatives if not form.comes_first]
    for candidate, view in (*early, (name, row), *late):
        paths = matches(data_dir, candidate)
        if paths:
            return SourceFiles(_relative(paths[0], data_dir), tuple(paths), view, True)
    return SourceFiles(name, (data_dir / name,), row, False)


def _relative(path: Path, data_dir: Path) -> str:
    return path.relative_to(data_dir).as_posix() if path.is_relative_to(data_dir) else path.as_posix()


def _with_columns(row: Benchmark, form: HubFormat) -> Benchmark:
    columns = form.model_dump(include={"first", "second", "label", "identity"}, exclude_none=True)
    return row.model_copy(update={**columns, "classes": form.classes, "columns": None})
