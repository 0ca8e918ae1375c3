"""Which files a part of a benchmark is read from: those of its row, or another form of them, by what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from model.benchmarks.benchmark import Benchmark, Form
from model.common.errors import UserError

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".json", ".txt", ".conll")
# A split of the hub: its own files (`huggingface-cli download`, `cloze fetch`), one file, or a folder of its own (the
# branch refs/convert/parquet, and `cloze fetch` of one split).
_SPLIT_PATTERNS = ("{}-*-of-*.parquet", "{}.parquet", "{}/*.parquet")


@dataclass(frozen=True)
class Source:
    """The files of one part, in order, and the row with the columns that they have."""

    name: str
    """Relative to the data folder; of several files that of the first."""
    paths: tuple[Path, ...]
    """At least one; where none is there, the one that was expected."""
    row: Benchmark
    exists: bool

    @property
    def ending(self) -> str:
        """What says the files' format: their ending, or where it is no known one that of the row's training file."""
        own = self.paths[0].suffix
        return own if own in ENDINGS else Path(self.row.train).suffix


def train_source(row: Benchmark, data_dir: Path) -> Source:
    """Where the training rows are."""
    return _find(row, data_dir, row.train, lambda form: form.train)


def dev_sources(row: Benchmark, data_dir: Path) -> dict[str, Source]:
    """Where the development rows are, by suffix."""
    return {
        suffix: _find(row, data_dir, name, lambda form, suffix=suffix: form.dev.get(suffix, ""))  # type: ignore[misc]
        for suffix, name in row.dev.items()
    }


def test_sources(row: Benchmark, data_dir: Path) -> dict[str, Source]:
    """Where the test rows are, by suffix."""
    return {
        suffix: _find(row, data_dir, name, lambda form, suffix=suffix: form.test.get(suffix, ""))  # type: ignore[misc]
        for suffix, name in row.test.items()
    }


def files_of(row: Benchmark, data_dir: Path) -> list[tuple[str, Path]]:
    """The files that fine-tuning reads, training first, as (name relative to the data folder, path).

    Raises:
        UserError: the training file, or that of the first development part, is missing.
    """
    dev = dev_sources(row, data_dir)
    files: list[tuple[str, Path]] = []
    for source, needed in ((train_source(row, data_dir), True), *((dev[name], not at) for at, name in enumerate(dev))):
        if source.exists:
            files += [(_relative(path, data_dir), path) for path in source.paths]
        elif needed:
            raise UserError(f"{source.paths[0]} is missing, and the benchmark {row.name} reads it")
    return files


def train_bytes(row: Benchmark, data_dir: Path) -> int:
    """The size of the training files, which tells about how long training takes."""
    return sum(path.stat().st_size for path in train_source(row, data_dir).paths)


def matches(data_dir: Path, name: str) -> list[Path]:
    """The files that a name stands for: itself, the files that fit its `*`, or the Parquet files of a split."""
    if not name:
        return []
    if "*" in name:
        return sorted(path for path in data_dir.glob(name) if path.is_file())
    path = data_dir / name
    if path.suffix or path.is_file():
        return [path] if path.exists() else []
    for pattern in _SPLIT_PATTERNS:
        found = sorted(data_dir.glob(pattern.format(name)))
        if found:
            return found
    return []


def _find(row: Benchmark, data_dir: Path, name: str, name_in: Callable[[Form], str]) -> Source:
    for candidate, view in _candidates(row, name, name_in):
        paths = matches(data_dir, candidate)
        if paths:
            return Source(_relative(paths[0], data_dir), tuple(paths), view, True)
    return Source(name, (data_dir / name,), row, False)


def _relative(path: Path, data_dir: Path) -> str:
    return path.relative_to(data_dir).as_posix() if path.is_relative_to(data_dir) else path.as_posix()


def _candidates(row: Benchmark, name: str, name_in: Callable[[Form], str]) -> Iterator[tuple[str, Benchmark]]:
    """Names in the order in which they are looked for, each with the row as its files are read."""
    early = [(name_in(form), _seen(row, form)) for form in row.forms if form.comes_first]
    late = [(name_in(form), _seen(row, form)) for form in row.forms if not form.comes_first]
    yield from early
    yield name, row
    yield from late


def _seen(row: Benchmark, form: Form) -> Benchmark:
    """The row with a form's columns."""
    own = {name: getattr(form, name) for name in ("first", "second", "label", "identity")}
    changes = {name: value for name, value in own.items() if value is not None}
    return row.model_copy(update={**changes, "classes": form.classes, "columns": None})
