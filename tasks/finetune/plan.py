"""Plan of the fine-tuning stage: its encoders, and one job per (encoder, benchmark, recipe, seed), as far as known.

With pruned grids and benchmarks that depend on others, some jobs are known only after earlier ones have finished. The
plan is a function of parameters, inputs and results, so it is the same after an interruption.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.sources import files_of, train_bytes
from model.benchmarks.table import Benchmark
from model.benchmarks.table import in_order as table_order
from model.common.errors import UserError
from model.common.files import digest_of, digest_of_file, read_json
from model.common.run_dir import RunDir
from model.config.finetuning import FinetuneRecipe
from model.finetune.job import Job
from tasks.params.finetune import (
    Dependency,
    ExternalEncoder,
    FinetuneParams,
    PruneParams,
    dependency_chain,
    dependency_order,
)
from tasks.pretrain.start import digest_of_encoder, read_checkpoint
from tasks.project.progress import scientific
from tasks.stats.selection import RunResult, by_recipe, rank_of, select

Kind = Literal["pretrained", "scratch", "external"]
"""`scratch` is an encoder with zero training steps."""

Result = dict[str, Any]
ResultOf = Callable[["PlannedFinetune"], Result | None]
_SHORT = {"learning_rate": "lr", "batch_size": "batch", "num_epochs": "epochs", "adapt.kind": "adapt"}  # in job names
_NOT_TRAINED_ON = {"title", "test", "paper", "grid", "forms"}  # fields of a custom task that do not affect training


@dataclass(frozen=True)
class EncoderSource:
    """An encoder in the `transformers` layout; `digest` is the hash of the files that fine-tuning reads."""

    name: str
    folder: Path
    kind: Kind
    digest: str
    system: str = ""
    """Name of the system that it is one pre-training of; empty if it is the only one."""
    seed: int | None = None
    """Pre-training seed of one of several pre-trainings."""


def find_encoders(external: Sequence[ExternalEncoder], pretrain_dir: Path, data_dir: Path) -> list[EncoderSource]:
    """List the pre-trained encoders by name, then the external ones in their given order.

    Raises:
        UserError: an external encoder lacks a file, does not match its tokenizer, or has the name of another encoder.
    """
    found = []
    for folder in sorted(pretrain_dir.iterdir()):
        metrics = RunDir(folder).metrics
        if metrics.exists():
            result = read_json(metrics)
            kind: Kind = "pretrained" if result["num_steps"] > 0 else "scratch"
            member = result.get("system", ""), result.get("seed")
            found.append(EncoderSource(folder.name, folder, kind, digest_of_encoder(folder), *member))
    for encoder in external:
        if any(other.name == encoder.name for other in found):
            raise UserError(f"finetune.encoders: pretrain also has an encoder '{encoder.name}'; rename one")
        folder = data_dir / encoder.path
        remedy = "put the encoder there or correct `path`"
        _, digest = read_checkpoint(folder, f"finetune.encoders: {encoder.name}", remedy)
        if twin := next((other.name for other in found if other.digest == digest), None):  # its jobs would be the same
            raise UserError(f"finetune.encoders: {encoder.name} has the same files as {twin}; remove one")
        found.append(EncoderSource(encoder.name, folder, "external", digest))
    return found


def weight_bytes(folder: Path) -> int:
    return max(path.stat().st_size for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))


@dataclass(frozen=True)
class PlannedFinetune:
    """A fine-tuning job."""

    job: Job
    cost: float
    """Approximate duration relative to other jobs, including the jobs that depend on it."""
    source: PlannedFinetune | None = None
    """The job whose model it starts from."""

    @property
    def digest(self) -> str:
        return self.job.digest

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.job.run_dir)


@dataclass(frozen=True)
class Group:
    """The known jobs of one encoder on one benchmark."""

    encoder: EncoderSource
    benchmark: str
    jobs: tuple[PlannedFinetune, ...]
    """Candidates for the best on dev."""
    pruned: tuple[PlannedFinetune, ...] = ()
    """First seeds of the pruned grid points."""
    after: tuple[str, ...] = ()
    """Benchmarks it depends on, nearest first."""
    is_decided: bool = True
    """False while pruning has not decided which jobs follow."""

    @property
    def key(self) -> tuple[str, str]:
        return self.encoder.name, self.benchmark


class Planner:
    """Plans the jobs that `params` ask for.

    Raises:
        UserError: a benchmark's file is missing, or lacks what a recipe needs.
    """

    def __init__(
        self, params: FinetuneParams, encoders: Sequence[EncoderSource], data_dir: Path, runs_dir: Path, version: int
    ) -> None:
        self.params = params = params.with_tasks(data_dir)
        self.encoders = encoders
        self._data_dir = data_dir
        self._runs_dir = runs_dir
        self._version = version
        self._dependencies = params.dependencies()
        self._recipes = {name: params.recipes(name) for name in params.benchmarks}
        self._data = {name: data_digest(params.row(name), data_dir) for name in params.benchmarks}
        for name, recipes in self._recipes.items():
            row = params.row(name)
            for recipe in recipes:
                HEAD_SPECS[row.head].check_files(row, data_dir, recipe)
        self._made: dict[tuple[str, str, int, int, str], PlannedFinetune] = {}
        self._names: dict[str, str] = {}  # of the jobs so far, with their digests

    @property
    def benchmarks(self) -> list[str]:
        """Benchmarks in the order of the table, then custom tasks."""
        return table_order(self.params.benchmarks)

    def groups(self, result_of: ResultOf) -> list[Group]:
        """List all groups with known jobs, each after the groups it depends on."""
        found: dict[tuple[str, str], Group] = {}
        for encoder in self.encoders:
            for benchmark in dependency_order(self._dependencies):
                dependency = self._dependencies[benchmark]
                earlier = found.get((encoder.name, dependency.after)) if dependency is not None else None
                if dependency is None or (earlier is not None and is_complete(earlier, result_of)):
                    found[encoder.name, benchmark] = self._group(encoder, benchmark, earlier, result_of)
        return list(found.values())

    def wants_seeds_of(self, benchmark: str) -> bool:
        """Check whether another benchmark starts from this benchmark's best job of each seed."""
        return any(one is not None and one.after == benchmark and one.same_seed for one in self._dependencies.values())

    def _group(self, encoder: EncoderSource, benchmark: str, earlier: Group | None, result_of: ResultOf) -> Group:
        seeds, prune = self.params.seeds, self.params.prune
        sources = {seed: _source(earlier, self._dependencies[benchmark], seed, result_of) for seed in seeds}
        points = [
            [self._planned(encoder, benchmark, number, seed, sources[seed]) for seed in seeds]
            for number in range(len(self._recipes[benchmark]))
        ]
        after = tuple(dependency_chain(benchmark, self._dependencies)[1:])
        if prune is None or len(points) == 1 or len(seeds) <= prune.after_seeds:
            return Group(encoder, benchmark, tuple(itertools.chain(*points)), after=after)
        first = [point[: prune.after_seeds] for point in points]
        results = [[result for job in jobs if (result := result_of(job)) is not None] for jobs in first]
        if any(len(some) < prune.after_seeds for some in results):
            return Group(encoder, benchmark, tuple(itertools.chain(*first)), after=after, is_decided=False)
        kept = surviving(results, prune)
        jobs = itertools.chain(*(points[number] for number in sorted(kept)))
        pruned = itertools.chain(*(point for number, point in enumerate(first) if number not in kept))
        return Group(encoder, benchmark, tuple(jobs), tuple(pruned), after)

    def _planned(
        self, encoder: EncoderSource, benchmark: str, number: int, seed: int, source: PlannedFinetune | None
    ) -> PlannedFinetune:
        key = (encoder.name, benchmark, number, seed, source.digest if source is not None else "")
        if key in self._made:
            return self._made[key]
        recipe = self._recipes[benchmark][number]
        factor = self.params.epochs_factor.get(encoder.system or encoder.name, 1)
        recipe = recipe.model_copy(update={"num_epochs": recipe.num_epochs * factor})
        dependency = self._dependencies[benchmark]
        content: dict[str, Any] = {
            "benchmark": benchmark,
            "data": self._data[benchmark],
            "encoder": encoder.digest,
            "judge_share": self.params.judge_share,
            "precision": self.params.machine.precision,
            "recipe": recipe.model_dump(),
            "seed": seed,
            "version": self._version,
        }
        custom = self.params.custom_row(benchmark)
        if custom is not None:
            content["row"] = custom.model_dump(mode="json", exclude=_NOT_TRAINED_ON)
        chain: dict[str, Any] = {}
        if source is not None and dependency is not None:
            content["after"] = {"digest": source.digest, "keep_head": dependency.keep_head}
            chain = {"after": dependency.after, "keep_head": dependency.keep_head}
        digest = digest_of(content)
        job = Job(
            digest=digest,
            encoder_name=encoder.name,
            encoder_dir=encoder.folder,
            benchmark=benchmark,
            own=custom,
            data_dir=self._data_dir,
            recipe=recipe,
            seed=seed,
            run_dir=self._runs_dir / f"{encoder.name}-{benchmark}-{digest}",
            name=self._name(encoder, benchmark, number, seed, digest),
            machine=self.params.machine,
            judge_share=self.params.judge_share,
            **chain,
        )
        self._made[key] = PlannedFinetune(job, self._cost(benchmark, recipe), source)
        return self._made[key]

    def _name(self, encoder: EncoderSource, benchmark: str, number: int, seed: int, digest: str) -> str:
        """Name a job by what differs: encoder, benchmark, the settings that the grid varies, and the seed."""
        parts = [encoder.name, benchmark, *varied(self._recipes[benchmark])[number], f"seed={seed}"]
        name = "/".join(parts)
        if self._names.setdefault(name, digest) != digest:  # such as a job that starts from another model
            name += f"/{digest[:6]}"
        return name

    def _cost(self, benchmark: str, recipe: FinetuneRecipe) -> float:
        """Approximate duration of a job plus that of the longest job that depends on it."""
        row = self.params.row(benchmark)
        cost = train_bytes(row, self._data_dir) * recipe.num_epochs * HEAD_SPECS[row.head].relative_cost
        dependent = [name for name, one in self._dependencies.items() if one is not None and one.after == benchmark]
        return cost + max((self._cost(name, self._recipes[name][0]) for name in dependent), default=0.0)


def varied(recipes: Sequence[FinetuneRecipe]) -> list[list[str]]:
    """Return, for each recipe, the settings in which the recipes differ, such as ["lr=5e-4", "batch=16"]."""
    flat = [_texts(recipe.model_dump(mode="json")) for recipe in recipes]
    values: dict[str, set[str]] = {}
    for texts in flat:
        for name, text in texts.items():
            values.setdefault(name, set()).add(text)
    return [
        [f"{_SHORT.get(name, name)}={text}" for name, text in texts.items() if len(values[name]) > 1] for texts in flat
    ]


def _texts(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Write settings briefly: `a.b` → text, such as 5e-4 for 0.0005."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= _texts(value, f"{prefix}{name}.")
            continue
        text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
        if isinstance(value, float):
            text = scientific(value) if 0 < abs(value) < 0.01 else f"{value:g}"
        found[f"{prefix}{name}"] = text
    return found


def benchmark_files(row: Benchmark, data_dir: Path) -> list[tuple[str, Path]]:
    """List a benchmark's training and development files, as (name relative to the data folder, path).

    Raises:
        UserError: a file is missing.
    """
    try:
        return files_of(row, data_dir)
    except UserError as error:
        raise UserError(f"{error}; add it, or remove {row.name} from finetune.benchmarks in params.yaml") from None


def data_digest(row: Benchmark, data_dir: Path) -> str:
    """Hash of the files of `benchmark_files`, which may raise UserError."""
    return digest_of([(name, digest_of_file(path)) for name, path in benchmark_files(row, data_dir)])


def best_of(jobs: Sequence[PlannedFinetune], result_of: ResultOf) -> PlannedFinetune | None:
    """Return the best job on dev (see `tasks.stats.selection`); None if no job has a result."""
    found = {one.digest: (one, result) for one in jobs if (result := result_of(one)) is not None}
    if not found:
        return None
    return found[select(RunResult.parse(result, "result.json") for _, result in found.values()).best.digest][0]


def _source(
    earlier: Group | None, dependency: Dependency | None, seed: int, result_of: ResultOf
) -> PlannedFinetune | None:
    if earlier is None or dependency is None:
        return None
    return best_of([one for one in earlier.jobs if not dependency.same_seed or one.job.seed == seed], result_of)


def is_complete(group: Group, result_of: ResultOf) -> bool:
    return group.is_decided and all(result_of(one) is not None for one in group.jobs)


def surviving(points: Sequence[Sequence[Result]], prune: PruneParams) -> set[int]:
    """Numbers of the grid points that continue; `points` are the results of each point's first seeds."""
    number_of = {result["digest"]: number for number, results in enumerate(points) for result in results}
    recipes = by_recipe(RunResult.parse(result, "result.json") for results in points for result in results)
    ranks = [rank_of(runs) for runs in recipes]
    kept = math.ceil(prune.keep * len(points))
    return {
        number_of[runs[0].digest]
        for place, (runs, rank) in enumerate(zip(recipes, ranks))
        if place < kept or (rank.learned == ranks[0].learned and rank.mean >= ranks[0].mean - prune.margin)
    }
