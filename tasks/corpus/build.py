"""All sources to one corpus: units are cleaned side by side, then documents chosen in order and published as shards."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from model.errors import UserError
from model.files import write_json
from tasks.corpus.choosing import Choice, choose
from tasks.corpus.cleaning import Work, clean_unit
from tasks.corpus.executors import Executor, LocalProcesses
from tasks.corpus.publishing import INDEX_NAME, ShardPlan, index_of, plan_shards, shard_record, write_shard
from tasks.corpus.settings import CorpusSettings
from tasks.corpus.shards import ShardWriter
from tasks.corpus.shuffle import shuffle_words
from tasks.corpus.unit_store import File, Record, UnitStore, describe, open_store
from tasks.corpus.units import Unit, list_units

Report = Callable[[int, int, str], None]
# Starting processes takes about as long as these.
_WORTH_CLEANERS_BYTES = 4 << 20  # of input
_WORTH_WRITERS_BYTES = 32 << 20  # of shards


class CorpusSummary(TypedDict):
    """What came of the sources."""

    documents: int
    """Rows of the corpus (a document of weight 2 is two)."""
    sentences: int
    words: int
    """As tasks.corpus.prose.num_words counts them."""
    drops: dict[str, int]
    """Documents that were left out, by reason; "sentence with markup" counts sentences."""
    sources: dict[str, dict[str, int]]
    """Documents, sentences and words of each source."""


def build_corpus(
    settings: CorpusSettings,
    data_dir: Path,
    out_dir: Path,
    report: Report | None = None,
    num_workers: int = 1,
    units_dir: Path | None = None,
    executor: Executor | None = None,
) -> CorpusSummary:
    """Write the corpus of all sources into `out_dir`: the same bytes whoever cleaned what when, restarted or not.

    Args:
        settings: the section `corpus` of params.yaml.
        data_dir: the folder that the sources' paths start from.
        out_dir: a folder to fill; where it fails, nothing is left in it.
        report: called with bytes cleaned, bytes to clean and a short text.
        num_workers: processes of this machine that work at a time.
        units_dir: where cleaned units are kept for the next run; without it, for this run only.
        executor: who cleans; processes of this machine where it is not given.

    Raises:
        Paused: the run was asked to stop; units that are done are kept.
        UserError: a source is missing, damaged or of another form than its kind, or nothing is left of it all.
    """
    with _workplace(out_dir, units_dir) as (scratch, kept_dir):
        units = list_units(settings, data_dir, kept_dir / "files.json", num_workers)
        store = open_store(settings.exchange, kept_dir / "units")
        cleaner = _Cleaner(settings, units, store, report)
        choice = cleaner.run(executor, num_workers)
        plans = plan_shards(choice.units, store, scratch if settings.shuffle_words else out_dir, settings.shard_bytes)
        shards = [shard_record(plan, file) for plan, file in zip(plans, _publish(plans, num_workers, cleaner.say))]
        index = index_of(choice, shards, settings)
        if not index["documents"]:
            dropped = ", ".join(f"{count:,} {reason}" for reason, count in index["drops"].items())
            raise UserError(f"corpus: no document is left; dropped: {dropped or 'none, sources are empty'}")
        if settings.shuffle_words:
            shuffled = _shuffled(settings, [plan.path for plan in plans], out_dir, cleaner.say)
            index["shards"] = [{"file": describe(path)} for path in shuffled]
        write_json(out_dir / INDEX_NAME, index)
        store.prune({unit.key for unit in units})
    return {name: index[name] for name in CorpusSummary.__annotations__}  # type: ignore[return-value]


class _Cleaner:
    """Cleans what choosing needs: all units, but of a source with max_documents not many more than fill it."""

    def __init__(
        self, settings: CorpusSettings, units: Sequence[Unit], store: UnitStore, report: Report | None
    ) -> None:
        self._settings = settings
        self._units = units
        self._store = store
        self._report = report
        self._records: dict[str, Record] = {}
        self._size_of = {unit.key: unit.num_bytes for unit in units}
        self._total_bytes = sum(self._size_of.values())

    def run(self, executor: Executor | None, num_workers: int) -> Choice:
        """Take over the units that are done, and clean until the choice is complete."""
        self._records = self._store.records(list(self._size_of), num_workers)
        if self._records:
            self.say(f"{len(self._records):,} of {len(self._size_of):,} units are there")
        limited = {source.name for source in self._settings.sources if source.max_documents is not None}
        num_of_limited = max(4, num_workers)
        while True:
            units = list(self._first_units(limited, num_of_limited))
            self._clean(units, executor, num_workers)
            choice = choose(self._settings, [(unit, self._records[unit.key]) for unit in units], self._store)
            short = limited - choice.full
            if len(units) == len(list(self._first_units(limited, 2 * num_of_limited))) or not short:
                return choice
            num_of_limited *= 2

    def say(self, text: str, done: bool = False) -> None:
        """Report progress with a text; `done` when there is nothing left to clean."""
        if self._report:
            cleaned = sum(map(self._size_of.__getitem__, self._records))
            self._report(self._total_bytes if done else cleaned, self._total_bytes, text)

    def _first_units(self, limited: set[str], number: int) -> Iterator[Unit]:
        """All units, but of the limited sources so many."""
        counts: Counter[str] = Counter()
        for unit in self._units:
            counts[unit.source.name] += 1
            if unit.source.name not in limited or counts[unit.source.name] <= number:
                yield unit

    def _clean(self, units: Sequence[Unit], executor: Executor | None, num_workers: int) -> None:
        missing = {unit.key: unit for unit in units if unit.key not in self._records}
        work = [Work(unit, self._settings, self._store) for unit in missing.values()]
        if executor is None:
            num_bytes = sum(unit.num_bytes for unit in missing.values())
            is_worth_workers = num_bytes >= min(self._settings.unit_bytes, _WORTH_CLEANERS_BYTES)
            executor = LocalProcesses(num_workers if is_worth_workers else 1)
        for done, record in executor.map(clean_unit, work):
            self._records[done.unit.key] = record
            self.say(f"{done.unit.source.name}: {record['documents']:,} documents of {done.unit.pieces[0].name}")


def _publish(plans: Sequence[ShardPlan], num_workers: int, say: Callable[[str, bool], None]) -> list[File]:
    """Write the shards; a description of each, in order."""
    size = sum(part.file["bytes"] for plan in plans for _, part in plan.parts)
    executor = LocalProcesses(num_workers if size >= _WORTH_WRITERS_BYTES else 1)
    files: dict[Path, File] = {}
    for plan, file in executor.map(write_shard, plans):
        files[plan.path] = file
        say(f"{len(files):,} of {len(plans):,} shards written", True)
    return [files[plan.path] for plan in plans]


def _shuffled(settings: CorpusSettings, paths: list[Path], out_dir: Path, report: Callable[[str], None]) -> list[Path]:
    """The negative control in place of the corpus."""
    writer = ShardWriter(out_dir, settings.shard_bytes)
    shuffle_words(paths, writer, settings.shuffle_seed, report)
    writer.close()
    return writer.paths


@contextmanager
def _workplace(out_dir: Path, units_dir: Path | None) -> Iterator[tuple[Path, Path]]:
    """(A folder inside `out_dir` for what is not published, the folder of the units); a failure empties `out_dir`."""
    scratch = out_dir / ".scratch"
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        yield scratch, units_dir or scratch
    except BaseException:
        for path in out_dir.glob("*"):
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
