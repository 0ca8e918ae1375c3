"""The fan-out: one fine-tuning job per (encoder, benchmark, recipe, seed), and the stage's output made of them."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from model.benchmarks.own import Own, is_own, load_own
from model.benchmarks.recipe import FinetuneRecipe
from model.benchmarks.sources import files_of, train_bytes
from model.benchmarks.table import BENCHMARKS, Benchmark, find
from model.errors import UserError
from model.files import digest_of, digest_of_file, read_json, write_json
from model.finetune_job import Job
from model.machine import Machine
from model.settings import Settings
from tasks.jobs import copy_tree, result_of, supervise
from tasks.launch.pool import WorkerPool

Grid = dict[str, list[int | float]]
ENCODER_FILES = ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt")
_RESULT_FILES = ("result.json", "predictions.jsonl")
_NOT_TRAINED_ON = {"title", "test", "paper", "grid", "forms"}  # of an own task's row: part of no job's digest


class BenchmarkParams(Settings):
    """What differs for one benchmark."""

    recipe: dict[str, Any] = {}
    """Settings of FinetuneRecipe for this benchmark, over those of all."""
    grid: Grid | Literal["paper"] | None = None
    """The values to try, best on dev; none takes the grid of all."""


class FinetuneParams(Settings):
    """The fan-out: which benchmarks, with which recipes, seeds and workers."""

    seeds: list[int] = Field([1], min_length=1)
    """A job for each; the leaderboard shows mean, deviation and best."""
    recipe: dict[str, Any] = {}
    """Settings of FinetuneRecipe for all benchmarks, over the paper's."""
    grid: Grid | Literal["paper"] = {}
    """The values to try for all benchmarks (`paper`: those of the paper's section 4), best on dev."""
    epochs_factor: dict[str, int] = {}
    """Encoder → how many times the epochs; the rival from scratch needs more to be a fair one."""
    benchmarks: dict[str, BenchmarkParams | None] = Field(default_factory=lambda: dict.fromkeys(BENCHMARKS))
    """Which benchmarks to run, and what differs for each (own tasks, by their names, too)."""
    tasks: list[str] = []
    """Own tasks to run besides: YAML files, relative to data/, as tasks/letters.yaml (docs/add-a-benchmark.md)."""
    num_workers: int = Field(0, ge=0)
    """Jobs at a time; 0: one per GPU, or one per core. Does not change the results."""
    machine: Machine = Machine(num_threads=1)
    """What each job runs on."""

    @model_validator(mode="after")
    def _recipes_exist(self) -> FinetuneParams:
        own = [PurePosixPath(name).stem for name in self.tasks]
        for name in self.tasks:
            if not is_own(name):
                raise UserError(f"finetune.tasks: '{name}' is not a YAML file below data/, like tasks/letters.yaml")
        if len(set(own)) < len(own):
            raise UserError(
                f"finetune.tasks: two files of one name ({', '.join(own)}): the name is the task's; rename one"
            )
        for name in self.benchmarks:
            if name not in own:
                self.row(name)
                self.recipes(name)
        return self

    _own: dict[str, Own] = PrivateAttr(default_factory=dict)

    def with_tasks(self, data_dir: Path) -> FinetuneParams:
        """The same with the own tasks read, each a benchmark under its file's name.

        Raises:
            UserError: one of the files is wrong.
        """
        found = {own.row.name: own for own in (load_own(name, data_dir) for name in self.tasks)}
        benchmarks = dict(self.benchmarks)
        for name, own in found.items():
            given = benchmarks.pop(name, None) or BenchmarkParams()
            grid = own.grid if given.grid is None else given.grid
            benchmarks[name] = given.model_copy(update={"recipe": {**own.recipe, **given.recipe}, "grid": grid})
        made = self.model_copy(update={"benchmarks": benchmarks})
        made._own = found
        for name in found:
            made.recipes(name)
        return made

    def row(self, benchmark: str) -> Benchmark:
        """The row of a benchmark of the table, or of an own task that `with_tasks` has read.

        Raises:
            UserError: there is none.
        """
        return self._own[benchmark].row if benchmark in self._own else find(benchmark)

    def own_row(self, benchmark: str) -> Benchmark | None:
        """The row of an own task; None for a benchmark of the table."""
        return self._own[benchmark].row if benchmark in self._own else None

    def recipes(self, benchmark: str) -> list[FinetuneRecipe]:
        """The grid of one benchmark as a list of whole recipes."""
        row = self.row(benchmark)
        own = self.benchmarks.get(benchmark) or BenchmarkParams()
        grid: Any = self.grid if own.grid is None else own.grid
        if grid == "paper":
            grid = row.grid
        base = {**row.paper, **self.recipe, **own.recipe}
        points = itertools.product(*[[(name, value) for value in values] for name, values in sorted(grid.items())])
        return [FinetuneRecipe.parse({**base, **dict(point)}, f"finetune ({benchmark})") for point in points]


@dataclass(frozen=True)
class Planned:
    """A job to be run, where its results lie, and about how long it takes beside the others."""

    job: Job
    name: str
    cost: float

    @property
    def run_dir(self) -> Path:
        """Its folder."""
        return self.job.run_dir


def plan_jobs(
    params: FinetuneParams,
    encoders: Sequence[str],
    pretrain_dir: Path,
    data_dir: Path,
    runs_dir: Path,
    version: int,
) -> list[Planned]:
    """Every job that `params` ask for, longest first.

    Raises:
        UserError: a benchmark's file is missing.
    """
    params = params.with_tasks(data_dir)
    data_digests = {name: data_digest(params.row(name), data_dir) for name in params.benchmarks}
    planned = []
    for encoder in encoders:
        folder = pretrain_dir / encoder
        encoder_digest = digest_of(
            [(name, digest_of_file(folder / name)) for name in ENCODER_FILES if (folder / name).exists()]
        )
        for benchmark, recipe, seed in _points(params):
            recipe = recipe.model_copy(update={"num_epochs": recipe.num_epochs * params.epochs_factor.get(encoder, 1)})
            content = {
                "benchmark": benchmark,
                "data": data_digests[benchmark],
                "encoder": encoder_digest,
                "precision": params.machine.precision,
                "recipe": recipe.model_dump(),
                "seed": seed,
                "version": version,
            }
            own = params.own_row(benchmark)
            if own is not None:
                content["row"] = own.model_dump(mode="json", exclude=_NOT_TRAINED_ON)
            digest = digest_of(content)
            job = Job(
                digest=digest,
                encoder_name=encoder,
                encoder_dir=folder,
                benchmark=benchmark,
                own=own,
                data_dir=data_dir,
                recipe=recipe,
                seed=seed,
                run_dir=runs_dir / f"{encoder}-{benchmark}-{digest}",
                machine=params.machine,
            )
            row = params.row(benchmark)
            cost = train_bytes(row, data_dir) * recipe.num_epochs * (2 if row.head == "span" else 1)
            planned.append(Planned(job, f"{encoder}/{benchmark}/seed {seed}/{digest[:6]}", cost))
    return sorted(planned, key=lambda one: -one.cost)


def _points(params: FinetuneParams) -> list[tuple[str, FinetuneRecipe, int]]:
    return [
        (benchmark, recipe, seed)
        for benchmark in params.benchmarks
        for recipe in params.recipes(benchmark)
        for seed in params.seeds
    ]


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


def finished(planned: Planned, published_dir: Path) -> dict[str, Any] | None:
    """The result of a job that has one, in its folder or in the published output."""
    found = result_of(planned.run_dir, planned.job.digest)
    if found is None:
        found = result_of(_published(planned, published_dir), planned.job.digest)
    return found


def run_one(planned: Planned, pool: WorkerPool, stop: threading.Event) -> dict[str, Any]:
    """Run a job on a warm worker; see `tasks.jobs.supervise` for what it raises."""
    job_path = planned.run_dir / "JOB.json"
    write_json(job_path, planned.job.model_dump(mode="json"))
    attempt = lambda: pool.run(planned.job.digest, job_path, stop)  # noqa: E731 (named for what it is)
    return supervise(planned.name, planned.job.digest, planned.run_dir, attempt, stop)


class BestModels:
    """Keeps only the model of the best job so far per encoder and benchmark: many large models fill a disk."""

    def __init__(self) -> None:
        self._best: dict[tuple[str, str], tuple[dict[str, Any], Path]] = {}
        self._lock = threading.Lock()

    def offer(self, planned: Planned, result: dict[str, Any]) -> None:
        """A job has finished: drop its model, or that of the one it beats."""
        key = (planned.job.encoder_name, planned.job.benchmark)
        with self._lock:
            best = self._best.get(key)
            if best is None or rank(result) > rank(best[0]):
                self._best[key] = (result, planned.run_dir)
                loser = best[1] if best is not None else None
            else:
                loser = planned.run_dir
            if loser is not None:
                shutil.rmtree(loser / "model", ignore_errors=True)


def rank(result: dict[str, Any]) -> tuple[bool, float, str]:
    """Orders results: sound before degenerate, then the headline on dev; equal ones by digest, whoever came first."""
    return (not result["degenerate"], result["headline"]["value"], result["digest"])


def best_without_model(planned: Sequence[Planned], published_dir: Path) -> list[Planned]:
    """The best jobs whose model is gone (a better one's, no longer asked for, was kept): they have to run once more."""
    best = (max(group, key=lambda pair: rank(pair[1]))[0] for group in _with_results(planned, published_dir).values())
    return [one for one in best if _model_of(one, published_dir) is None]


def assemble(planned: Sequence[Planned], published_dir: Path, out_dir: Path) -> None:
    """Put the output together from the jobs that have a result:
    out_dir/<encoder>/<benchmark>/{metrics.json, jobs/<digest>/, model/}.
    """
    for (encoder, benchmark), results in _with_results(planned, published_dir).items():
        target = out_dir / encoder / benchmark
        for one, _ in results:
            source = one.run_dir if result_of(one.run_dir, one.job.digest) else _published(one, published_dir)
            _copy_result(source, target / "jobs" / one.job.digest)
        best, best_result = max(results, key=lambda pair: rank(pair[1]))
        model_dir = _model_of(best, published_dir)
        assert model_dir is not None, "best_without_model names the jobs to repeat first"
        copy_tree(model_dir, target / "model")
        write_json(
            target / "metrics.json",
            {
                "encoder": encoder,
                "benchmark": benchmark,
                **({"row": best.job.own.model_dump(mode="json")} if best.job.own is not None else {}),
                "kind": encoder_kind(best.job.encoder_dir),
                "best": best_result["digest"],
                "jobs": sorted((result for _, result in results), key=lambda result: result["digest"]),
            },
        )


def encoder_kind(encoder_dir: Path) -> str:
    """`pretrained`, or `scratch` for an encoder of zero steps."""
    return "pretrained" if read_json(encoder_dir / "metrics.json")["num_steps"] > 0 else "scratch"


def _copy_result(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for name in _RESULT_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def forget(planned: Planned) -> None:
    """Drop a job's result so that it runs again."""
    (planned.run_dir / "result.json").unlink(missing_ok=True)


def _with_results(
    planned: Sequence[Planned], published_dir: Path
) -> dict[tuple[str, str], list[tuple[Planned, dict[str, Any]]]]:
    """The jobs that have a result, by encoder and benchmark."""
    groups: dict[tuple[str, str], list[tuple[Planned, dict[str, Any]]]] = defaultdict(list)
    for one in planned:
        result = finished(one, published_dir)
        if result is not None:
            groups[one.job.encoder_name, one.job.benchmark].append((one, result))
    return groups


def _published(planned: Planned, published_dir: Path) -> Path:
    return published_dir / planned.job.encoder_name / planned.job.benchmark / "jobs" / planned.job.digest


def _model_of(planned: Planned, published_dir: Path) -> Path | None:
    if (planned.run_dir / "model").is_dir() and result_of(planned.run_dir, planned.job.digest):
        return planned.run_dir / "model"
    published = published_dir / planned.job.encoder_name / planned.job.benchmark
    if (published / "model").is_dir() and read_json(published / "metrics.json")["best"] == planned.job.digest:
        return published / "model"
    return None
