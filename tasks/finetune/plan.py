"""The plan of the fan-out: a job per (encoder, benchmark, recipe, seed), as far as results tell which there are.

Grids that are pruned and benchmarks that come after others have jobs that are known only when earlier ones have ended.
The plan is a function of parameters, inputs and results, so that whoever asks again, after a kill say, gets the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.benchmarks.sources import files_of, train_bytes
from model.benchmarks.table import Benchmark
from model.benchmarks.table import in_order as table_order
from model.common.errors import UserError
from model.common.files import digest_of, digest_of_file
from model.common.run_dir import RunDir
from model.config.finetuning import FinetuneRecipe
from model.finetune.job import Job
from tasks.finetune.encoder_sources import EncoderSource
from tasks.finetune.pruning import first_results, surviving, undecided
from tasks.params.finetune import Dependency, FinetuneParams, dependency_chain, dependency_order
from tasks.stats.selection import RunResult, select

Result = dict[str, Any]
_NOT_TRAINED_ON = {"title", "test", "paper", "grid", "forms"}  # of an own task's row: part of no job's digest


@dataclass(frozen=True)
class Planned:
    """A job to be run, where its results lie, and about how long it takes beside the others."""

    job: Job
    name: str
    cost: float
    source: Planned | None = None
    """The job whose model it starts from."""

    @property
    def digest(self) -> str:
        """The job's name."""
        return self.job.digest

    @property
    def run_dir(self) -> RunDir:
        """Run directory of the job."""
        return RunDir(self.job.run_dir)


@dataclass(frozen=True)
class Group:
    """The jobs of one encoder on one benchmark, as far as they are known."""

    encoder: EncoderSource
    benchmark: str
    jobs: tuple[Planned, ...]
    """Those that the choice of the best on dev is made of."""
    pruned: tuple[Planned, ...] = ()
    """The first seeds of grid points that were given up."""
    after: tuple[str, ...] = ()
    """The benchmarks that it comes after, the nearest first."""
    is_decided: bool = True
    """Whether `jobs` are all that there will be."""

    @property
    def key(self) -> tuple[str, str]:
        """Encoder and benchmark."""
        return self.encoder.name, self.benchmark


class Planner:
    """What `params` ask for.

    Raises:
        UserError: a benchmark's file is missing.
    """

    def __init__(
        self,
        params: FinetuneParams,
        encoders: Sequence[EncoderSource],
        data_dir: Path,
        runs_dir: Path,
        version: int,
    ) -> None:
        self.params = params = params.with_tasks(data_dir)
        self.encoders = encoders
        self._data_dir = data_dir
        self._runs_dir = runs_dir
        self._version = version
        self._dependencies = params.dependencies()
        self._recipes = {name: params.recipes(name) for name in params.benchmarks}
        self._data = {name: data_digest(params.row(name), data_dir) for name in params.benchmarks}
        self._made: dict[tuple[str, str, int, int, str], Planned] = {}

    @property
    def benchmarks(self) -> list[str]:
        """The benchmarks in the table's order, own tasks after them."""
        return table_order(self.params.benchmarks)

    def groups(self, result_of: Callable[[Planned], Result | None]) -> list[Group]:
        """All groups whose jobs are known, each after those that it starts from."""
        found: dict[tuple[str, str], Group] = {}
        for encoder in self.encoders:
            for benchmark in dependency_order(self._dependencies):
                link = self._dependencies[benchmark]
                earlier = found.get((encoder.name, link.after)) if link is not None else None
                if link is None or (earlier is not None and _is_complete(earlier, result_of)):
                    found[encoder.name, benchmark] = self._group(encoder, benchmark, earlier, result_of)
        return list(found.values())

    def wants_seeds_of(self, benchmark: str) -> bool:
        """Whether another benchmark starts from this one's best job of each seed."""
        return any(
            link is not None and link.after == benchmark and link.same_seed for link in self._dependencies.values()
        )

    def _group(
        self,
        encoder: EncoderSource,
        benchmark: str,
        earlier: Group | None,
        result_of: Callable[[Planned], Result | None],
    ) -> Group:
        seeds, link, prune = self.params.seeds, self._dependencies[benchmark], self.params.prune
        source: Callable[[int], Planned | None] = lambda _: None  # noqa: E731 (two forms of one thing)
        if link is not None and earlier is not None:
            source = lambda seed: _source(earlier, link, seed, result_of)  # noqa: E731
        points = [
            [self._planned(encoder, benchmark, number, seed, source(seed)) for seed in seeds]
            for number in range(len(self._recipes[benchmark]))
        ]
        after = tuple(dependency_chain(benchmark, self._dependencies)[1:])
        if prune is None or not undecided(points, prune):
            return Group(encoder, benchmark, _flat(points), after=after)
        first = [point[: prune.after_seeds] for point in points]
        results = first_results(points, prune, result_of)
        if results is None:
            return Group(encoder, benchmark, _flat(first), after=after, is_decided=False)
        kept = surviving(results, prune)
        pruned = [point for number, point in enumerate(first) if number not in kept]
        return Group(encoder, benchmark, _flat([points[number] for number in sorted(kept)]), _flat(pruned), after)

    def _planned(
        self, encoder: EncoderSource, benchmark: str, number: int, seed: int, source: Planned | None
    ) -> Planned:
        key = (encoder.name, benchmark, number, seed, source.digest if source is not None else "")
        if key not in self._made:
            recipe = self._recipes[benchmark][number]
            factor = self.params.epochs_factor.get(encoder.name, 1)
            self._made[key] = self._new(
                encoder, benchmark, recipe.model_copy(update={"num_epochs": recipe.num_epochs * factor}), seed, source
            )
        return self._made[key]

    def _new(
        self, encoder: EncoderSource, benchmark: str, recipe: FinetuneRecipe, seed: int, source: Planned | None
    ) -> Planned:
        link = self._dependencies[benchmark]
        content: dict[str, Any] = {
            "benchmark": benchmark,
            "data": self._data[benchmark],
            "encoder": encoder.digest,
            "precision": self.params.machine.precision,
            "recipe": recipe.model_dump(),
            "seed": seed,
            "version": self._version,
        }
        own = self.params.custom_row(benchmark)
        if own is not None:
            content["row"] = own.model_dump(mode="json", exclude=_NOT_TRAINED_ON)
        chain: dict[str, Any] = {}
        if source is not None and link is not None:
            content["after"] = {"digest": source.digest, "keep_head": link.keep_head}
            chain = {"after": link.after, "keep_head": link.keep_head}
        digest = digest_of(content)
        job = Job(
            digest=digest,
            encoder_name=encoder.name,
            encoder_dir=encoder.folder,
            benchmark=benchmark,
            own=own,
            data_dir=self._data_dir,
            recipe=recipe,
            seed=seed,
            run_dir=self._runs_dir / f"{encoder.name}-{benchmark}-{digest}",
            machine=self.params.machine,
            **chain,
        )
        cost = self._cost(benchmark, recipe)
        return Planned(job, f"{encoder.name}/{benchmark}/seed {seed}/{digest[:6]}", cost, source)

    def _cost(self, benchmark: str, recipe: FinetuneRecipe) -> float:
        """About how long a job takes, with the longest of those that wait for it."""
        row = self.params.row(benchmark)
        own = train_bytes(row, self._data_dir) * recipe.num_epochs * (2 if row.head == "span" else 1)
        waiting = [name for name, link in self._dependencies.items() if link is not None and link.after == benchmark]
        return own + max((self._cost(name, self._recipes[name][0]) for name in waiting), default=0.0)


def data_digest(row: Benchmark, data_dir: Path) -> str:
    """The digest of a benchmark's training and development files.

    Raises:
        UserError: one of them is missing.
    """
    try:
        files = files_of(row, data_dir)
    except UserError as error:
        raise UserError(f"{error}; add it, or take {row.name} out of finetune.benchmarks in params.yaml") from None
    return digest_of([(name, digest_of_file(path)) for name, path in files])


def best_of(jobs: Sequence[Planned], result_of: Callable[[Planned], Result | None]) -> Planned | None:
    """The best on dev of the jobs that have a result (see `tasks.stats.selection`); None when none has."""
    found = {one.digest: (one, result) for one in jobs if (result := result_of(one)) is not None}
    if not found:
        return None
    return found[select(RunResult.parse(result, "result.json") for _, result in found.values()).best.digest][0]


def _source(group: Group, link: Dependency, seed: int, result_of: Callable[[Planned], Result | None]) -> Planned | None:
    jobs = [one for one in group.jobs if one.job.seed == seed] if link.same_seed else group.jobs
    return best_of(jobs, result_of)


def _is_complete(group: Group, result_of: Callable[[Planned], Result | None]) -> bool:
    return group.is_decided and all(result_of(one) is not None for one in group.jobs)


def _flat(points: Sequence[Sequence[Planned]]) -> tuple[Planned, ...]:
    return tuple(one for point in points for one in point)
