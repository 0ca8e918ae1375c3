"""The section `finetune` of params.yaml."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from model.benchmarks.custom_task import CustomBenchmark, is_custom, load_custom
from model.benchmarks.table import BENCHMARKS, Benchmark, find
from model.common.bounds import (
    MOST_ELEMENTS,
    Bytes,
    Count,
    Epochs,
    FilePath,
    Line,
    Name,
    Points,
    Processes,
    ProcessesOrZero,
    Seed,
    ShareAboveZero,
)
from model.common.config_base import Location, Placed, Settings, SettingsError, located, placed
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe, JudgeShare
from model.config.hardware import HardwareOptions

Grid = dict[str, Annotated[list[bool | int | float | str], Field(min_length=1)]]


@dataclass(frozen=True)
class Dependency:
    """The benchmark whose fine-tuned model a benchmark's jobs start from (intermediate fine-tuning).

    `same_seed`: each job starts from the best job with its own seed, instead of all from the best job.
    """

    after: str
    same_seed: bool = False
    keep_head: bool = False


Dependencies = Mapping[str, Dependency | None]


def dependency_chain(name: str, dependencies: Dependencies) -> list[str]:
    """Return the benchmark followed by its chain of dependencies; follows a cycle once."""
    chain = [name]
    while (dependency := dependencies.get(chain[-1])) is not None:
        chain.append(dependency.after)
        if dependency.after in chain[:-1]:
            break
    return chain


def dependency_order(dependencies: Dependencies) -> list[str]:
    """Sort the benchmarks so that each comes after its dependency; otherwise keeps their order."""
    ordered: dict[str, None] = {}
    for name in dependencies:
        ordered |= dict.fromkeys(reversed(dependency_chain(name, dependencies)))
    return list(ordered)


def below_data(path: str) -> str:
    """Check the directory of an encoder; raises ValueError unless it is relative to data/ and below it."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError("expected a directory below data/, such as encoders/minilm")
    return path


class ExternalEncoder(Settings):
    """An encoder that was not pre-trained by this pipeline: any BERT in the `transformers` layout."""

    name: Name
    """Name in tables and directory names."""
    path: FilePath
    """Directory with config.json, weights and tokenizer.json, relative to data/. The deps of finetune in dvc.yaml must
    include it."""

    @field_validator("path")
    @classmethod
    def _below_data(cls, path: str) -> str:
        return below_data(path)


class PruneParams(Settings):
    """Selection of the grid points that run with all seeds. It depends only on results, never on timing or order."""

    after_seeds: Count = 1
    """Number of seeds (the first of `seeds`) to run for every grid point before pruning."""
    keep: ShareAboveZero = 0.5
    """Share of grid points to keep, rounded up: those with the best mean dev score over the first seeds."""
    margin: Points = 0.0
    """Also keep grid points that are within this many points of the best, in the headline metric."""


class BenchmarkParams(Settings):
    """Settings that override the common ones for one benchmark."""

    recipe: dict[str, Any] = {}
    """FinetuneRecipe settings that override `finetune.recipe` for this benchmark."""
    grid: Grid | Literal["paper"] | None = None
    """Values to try; the best on dev is published. null uses `finetune.grid`."""
    after: Line | None = None
    """Start from the encoder as fine-tuned on this benchmark instead of the pre-trained one: `mnli` for RTE, MRPC and
    STS-B, as in RoBERTa and later papers."""
    start: Literal["best", "same-seed"] = "best"
    """With `after`: start every job from the best job on dev, or each job from the best one with the same seed, so that
    the variation over seeds covers the whole chain."""
    keep_head: bool = False
    """With `after`: also keep the head, if both benchmarks have the same kind of head and the same labels (such as
    SQuAD v1.1 before v2.0); otherwise the head is initialized."""


class FinetuneParams(Settings):
    """Benchmarks, recipes, seeds and workers of fine-tuning."""

    seeds: list[Seed] = Field([1], min_length=1, max_length=MOST_ELEMENTS)
    """Random seeds, one job each. The leaderboard shows mean, standard deviation, median, best and the ensemble."""
    recipe: dict[str, Any] = {}
    """FinetuneRecipe settings for all benchmarks, overriding the paper's values."""
    grid: Grid | Literal["paper"] = {}
    """Values to try for all benchmarks (`paper`: the grid of section 4 of the paper); the best on dev is published."""
    prune: PruneParams | None = None
    """Drop grid points after their first seeds; null runs all seeds of every grid point."""
    judge_share: JudgeShare = "auto"
    """Share of the dev rows that are reported and compared; the others select the recipe, the epoch and the no-answer
    threshold. auto: 0.5 for benchmarks with at least 1,000 dev rows, 0 for smaller ones. 0 selects and reports on all
    rows, as the BERT paper does, so scores are somewhat too high."""
    epochs_factor: dict[str, Epochs] = {}
    """Encoder → factor for the number of epochs. A model trained from scratch needs more epochs to be a fair
    baseline."""
    encoders: list[ExternalEncoder] = Field([], max_length=MOST_ELEMENTS)
    """Additional encoders that were not pre-trained by this pipeline; the leaderboard labels them external."""
    benchmarks: dict[str, BenchmarkParams | None] = Field(default_factory=lambda: dict.fromkeys(BENCHMARKS))
    """Benchmarks to run, with their overrides (custom tasks by their names)."""
    tasks: list[FilePath] = []
    """Custom tasks to run: YAML files relative to data/, such as tasks/letters.yaml (see docs/add-a-benchmark.md)."""
    num_workers: ProcessesOrZero = 0
    """Maximum number of concurrent jobs; 0 uses what cores, memory and GPUs allow. Does not change results."""
    jobs_per_device: Processes | Literal["auto"] = "auto"
    """Concurrent jobs per GPU; `auto` runs as many as fit into its memory. Does not change results."""
    memory_bytes: Bytes = 0
    """Memory limit for all jobs together; 0 uses 80% of the memory available when the stage starts (within the
    container's limit, if any). Does not change results."""
    machine: HardwareOptions = HardwareOptions(num_threads=1)
    """Hardware options of each job."""

    @model_validator(mode="after")
    def _check(self) -> FinetuneParams:
        if self.machine.num_nodes > 1:
            text = "finetune.machine.num_nodes: a fine-tuning job runs on one node; set it to 1"
            raise SettingsError((("finetune", "machine", "num_nodes"), text))
        custom = [PurePosixPath(name).stem for name in self.tasks]
        with located("finetune", "tasks"):
            for name in self.tasks:
                if not is_custom(name):
                    raise UserError(
                        f"finetune.tasks: '{name}' is not a YAML file below data/, such as tasks/letters.yaml"
                    )
            if len(set(custom)) < len(custom):
                raise UserError(
                    f"finetune.tasks: two files have the same name ({', '.join(custom)}), which names the task; "
                    "rename one"
                )
        self._check_recipes(custom)
        if not custom:  # otherwise `with_tasks` checks, after it has read their rows
            self._check_dependencies()
        if len(set(self.seeds)) < len(self.seeds):
            text = f"finetune.seeds: {self.seeds} contains a seed twice; list each seed once"
            raise SettingsError((("finetune", "seeds"), text))
        names = [encoder.name for encoder in self.encoders]
        if len(set(names)) < len(names):
            text = f"finetune.encoders: duplicate name in {', '.join(names)}; give each encoder a unique name"
            raise SettingsError((("finetune", "encoders"), text))
        return self

    def _check_recipes(self, custom: Sequence[str]) -> None:
        """Check the common recipe and grid, and those of each benchmark; custom tasks' files are not read yet."""
        mistakes: dict[tuple[Location, str], None] = {}
        for name in (None, *self.benchmarks):
            row = None
            try:
                if name is None:  # also what the grid replaces
                    FinetuneRecipe.combine(placed(("finetune", "recipe"), self.recipe), ("finetune", "recipe"))
                if name is not None and name not in custom:
                    with located("finetune", "benchmarks", name):
                        row = self.row(name)
                self._combine(name or "", row)
            except SettingsError as error:
                mistakes |= dict.fromkeys(error.mistakes)
        if mistakes:
            raise SettingsError(*mistakes)

    def _check_dependencies(self) -> None:
        dependencies = self.dependencies()
        for name, dependency in dependencies.items():
            if dependency is not None:
                with located("finetune", "benchmarks", name):
                    self._check_dependency(name, dependency, dependencies)

    def _check_dependency(self, name: str, dependency: Dependency, dependencies: Dependencies) -> None:
        after, where = dependency.after, f"finetune.benchmarks.{name}"
        with located("after"):
            if after not in dependencies:
                self.row(after)  # raises with the nearest name if it is misspelled
                raise UserError(f"{where}.after: {after} is not in finetune.benchmarks; add it there")
        one, other = self.row(name), self.row(after)
        if dependency.keep_head and (one.head, one.labels) != (other.head, other.labels):
            text = f"{where}.keep_head: {name} and {after} differ in head or labels; remove keep_head"
            raise SettingsError((("keep_head",), text))
        chain = dependency_chain(name, dependencies)
        if chain[-1] in chain[:-1]:
            text = f"{where}.after: {' after '.join(chain)} is a cycle; remove one of them"
            raise SettingsError((("after",), text))

    _custom: dict[str, CustomBenchmark] = PrivateAttr(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the benchmarks and custom tasks."""
        return list(dict.fromkeys([*self.benchmarks, *(PurePosixPath(name).stem for name in self.tasks)]))

    def with_tasks(self, data_dir: Path) -> FinetuneParams:
        """Return a copy in which each custom task is a benchmark under its file's name.

        Raises:
            UserError: a task file is invalid.
        """
        found = {task.row.name: task for task in (load_custom(name, data_dir) for name in self.tasks)}
        benchmarks = dict(self.benchmarks)
        for name, task in found.items():
            given = benchmarks.pop(name, None) or BenchmarkParams()
            grid = task.grid if given.grid is None else given.grid
            benchmarks[name] = given.model_copy(update={"recipe": {**task.recipe, **given.recipe}, "grid": grid})
        made = self.model_copy(update={"benchmarks": benchmarks})
        made._custom = found
        for name in found:
            made.recipes(name)
        made._check_dependencies()
        return made

    def row(self, benchmark: str) -> Benchmark:
        """Return the table row of a benchmark, or of a custom task that `with_tasks` has read.

        Raises:
            UserError: there is no such benchmark; the message suggests the nearest name.
        """
        return self.custom_row(benchmark) or find(benchmark)

    def custom_row(self, benchmark: str) -> Benchmark | None:
        return self._custom[benchmark].row if benchmark in self._custom else None

    def dependencies(self) -> Dependencies:
        """Return the benchmark that each benchmark's jobs start from, if any."""
        given = {name: params or BenchmarkParams() for name, params in self.benchmarks.items()}
        return {
            name: None if one.after is None else Dependency(one.after, one.start == "same-seed", one.keep_head)
            for name, one in given.items()
        }

    def grid_of(self, benchmark: str) -> Mapping[str, Sequence[Any]]:
        """Return the values to try for one benchmark."""
        given = self.benchmarks.get(benchmark) or BenchmarkParams()
        grid = self.grid if given.grid is None else given.grid
        return self.row(benchmark).grid if grid == "paper" else grid

    def recipes(self, benchmark: str) -> list[FinetuneRecipe]:
        """Return the grid of one benchmark as a list of complete recipes."""
        return self._combine(benchmark, self.row(benchmark))

    def _combine(self, benchmark: str, row: Benchmark | None) -> list[FinetuneRecipe]:
        given = self.benchmarks.get(benchmark) or BenchmarkParams()
        own: Location = ("finetune", "benchmarks", benchmark)
        grid, place = (self.grid, ("finetune", "grid")) if given.grid is None else (given.grid, (*own, "grid"))
        paper = {} if row is None else row.grid
        tried: Mapping[str, Sequence[Any]] = paper if grid == "paper" else grid
        if (num_points := math.prod(map(len, tried.values()))) > MOST_ELEMENTS:
            where = ".".join(map(str, place))
            text = f"{where}: {num_points:,} combinations of values; expected at most {MOST_ELEMENTS:,}"
            raise SettingsError((place, text))
        base: Placed = placed((), row.paper if row else {})
        base |= placed(("finetune", "recipe"), self.recipe) | placed((*own, "recipe"), given.recipe)
        points = itertools.product(
            *[
                [(name, ((*place, name, number), value)) for number, value in enumerate(values)]
                for name, values in sorted(tried.items())
            ]
        )
        return [FinetuneRecipe.combine(base | dict(point), ("finetune", "recipe")) for point in points]
