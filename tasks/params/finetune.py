"""The section `finetune` of params.yaml."""

from __future__ import annotations

import itertools
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from model.benchmarks.custom_task import CustomBenchmark, is_custom, load_custom
from model.benchmarks.table import BENCHMARKS, Benchmark, find
from model.common.config_base import Settings
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe
from model.config.hardware import Machine
from tasks.finetune.dependencies import Link, check_links

Grid = dict[str, list[int | float | str]]


class ExternalEncoder(Settings):
    """An encoder that was not pre-trained here: any BERT in the layout of `transformers`."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    """The name in tables and folders."""
    path: str
    """Its folder below data/, in a folder that dvc.yaml names among the deps of finetune; it holds config.json, weights
    and tokenizer.json."""

    @field_validator("path")
    @classmethod
    def _below_data(cls, path: str) -> str:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError("expected a folder below data/, like encoders/minilm")
        return path


class PruneParams(Settings):
    """Which grid points get all seeds. Depends on results alone, never on time or order."""

    after_seeds: int = Field(1, ge=1)
    """So many seeds (the first of the list) of every grid point run before anything is decided."""
    keep: float = Field(0.5, gt=0, le=1)
    """The share of the grid points, rounded up, that goes on: those whose first seeds did best on dev in the mean."""
    margin: float = Field(0.0, ge=0)
    """Points of the headline metric: whoever is this close behind the best goes on, too."""


class BenchmarkParams(Settings):
    """What differs for one benchmark."""

    recipe: dict[str, Any] = {}
    """Settings of FinetuneRecipe for this benchmark, over those of all."""
    grid: Grid | Literal["paper"] | None = None
    """The values to try, best on dev; none takes the grid of all."""
    after: str | None = None
    """Start from the same encoder as that benchmark left it, rather than from the pre-trained one: `mnli` for RTE, MRPC
    and STS-B as in the papers that followed BERT."""
    start: Literal["best", "same-seed"] = "best"
    """With `after`: every job from its best job on dev, or each from its best job with the same seed, so that the
    spread over seeds is that of the whole chain."""
    keep_head: bool = False
    """With `after`: start from its head, too, where both have the same kind of head and the same labels (SQuAD v1.1
    before v2.0); otherwise the head is new."""


class FinetuneParams(Settings):
    """The fan-out: which benchmarks, with which recipes, seeds and workers."""

    seeds: list[int] = Field([1], min_length=1)
    """A job for each; the leaderboard shows mean, deviation, median and best, and the ensemble of them."""
    recipe: dict[str, Any] = {}
    """Settings of FinetuneRecipe for all benchmarks, over the paper's."""
    grid: Grid | Literal["paper"] = {}
    """The values to try for all benchmarks (`paper`: those of the paper's section 4), best on dev."""
    prune: PruneParams | None = None
    """Give up grid points after their first seeds: none runs every seed of every point."""
    epochs_factor: dict[str, int] = {}
    """Encoder → how many times the epochs; the rival from scratch needs more to be a fair one."""
    encoders: list[ExternalEncoder] = []
    """Encoders beside those that pretrain names; the leaderboard calls them external."""
    benchmarks: dict[str, BenchmarkParams | None] = Field(default_factory=lambda: dict.fromkeys(BENCHMARKS))
    """Which benchmarks to run, and what differs for each (custom tasks by their names, too)."""
    tasks: list[str] = []
    """Custom tasks to run as well: YAML files, relative to data/, as tasks/letters.yaml (docs/add-a-benchmark.md)."""
    num_workers: int = Field(0, ge=0)
    """Jobs at a time at most; 0: what cores, memory and GPUs allow. Does not change the results."""
    jobs_per_device: int | Literal["auto"] = "auto"
    """Jobs on one GPU at a time: auto packs as many as its memory holds. Does not change the results."""
    memory_bytes: int = Field(0, ge=0)
    """Memory that all jobs may take together; 0: 80 % of what is available when the stage starts (of the container's,
    where it has a limit). Does not change the results."""
    machine: Machine = Machine(num_threads=1)
    """What each job runs on."""

    @field_validator("jobs_per_device")
    @classmethod
    def _one_at_least(cls, count: int | str) -> int | str:
        if isinstance(count, int) and count < 1:
            raise ValueError("expected auto or a number from 1 on")
        return count

    @model_validator(mode="after")
    def _recipes_exist(self) -> FinetuneParams:
        own = [PurePosixPath(name).stem for name in self.tasks]
        for name in self.tasks:
            if not is_custom(name):
                raise UserError(f"finetune.tasks: '{name}' is not a YAML file below data/, like tasks/letters.yaml")
        if len(set(own)) < len(own):
            raise UserError(f"finetune.tasks: two files of one name ({', '.join(own)}); it names the task: rename one")
        for name in self.benchmarks:
            if name not in own:
                self.row(name)
                self.recipes(name)
        if not own:  # else `with_tasks`, which knows their rows
            check_links({name: self.link(name) for name in self.benchmarks}, self.row)
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"finetune.seeds: {self.seeds} names a seed twice; name each once")
        names = [encoder.name for encoder in self.encoders]
        if len(set(names)) < len(names):
            raise UserError(f"finetune.encoders: {', '.join(names)}: a name stands twice; give each encoder its own")
        return self

    _own: dict[str, CustomBenchmark] = PrivateAttr(default_factory=dict)

    def with_tasks(self, data_dir: Path) -> FinetuneParams:
        """The same with the own tasks read, each a benchmark under its file's name.

        Raises:
            UserError: one of the files is wrong.
        """
        found = {own.row.name: own for own in (load_custom(name, data_dir) for name in self.tasks)}
        benchmarks = dict(self.benchmarks)
        for name, own in found.items():
            given = benchmarks.pop(name, None) or BenchmarkParams()
            grid = own.grid if given.grid is None else given.grid
            benchmarks[name] = given.model_copy(update={"recipe": {**own.recipe, **given.recipe}, "grid": grid})
        made = self.model_copy(update={"benchmarks": benchmarks})
        made._own = found
        for name in found:
            made.recipes(name)
        check_links({name: made.link(name) for name in benchmarks}, made.row)
        return made

    def row(self, benchmark: str) -> Benchmark:
        """The row of a benchmark of the table, or of an own task that `with_tasks` has read.

        Raises:
            UserError: there is none; the nearest name is given.
        """
        return self._own[benchmark].row if benchmark in self._own else find(benchmark)

    def own_row(self, benchmark: str) -> Benchmark | None:
        """The row of an own task; None for a benchmark of the table."""
        return self._own[benchmark].row if benchmark in self._own else None

    def own(self, benchmark: str) -> BenchmarkParams:
        """What differs for the benchmark."""
        return self.benchmarks.get(benchmark) or BenchmarkParams()

    def link(self, benchmark: str) -> Link | None:
        """What the benchmark's jobs start from, if not from the encoder as it is."""
        own = self.own(benchmark)
        return Link(own.after, own.start == "same-seed", own.keep_head) if own.after is not None else None

    def recipes(self, benchmark: str) -> list[FinetuneRecipe]:
        """The grid of one benchmark as a list of whole recipes."""
        row, own = self.row(benchmark), self.own(benchmark)
        grid: Any = self.grid if own.grid is None else own.grid
        if grid == "paper":
            grid = row.grid
        base = {**row.paper, **self.recipe, **own.recipe}
        points = itertools.product(*[[(name, value) for value in values] for name, values in sorted(grid.items())])
        return [FinetuneRecipe.parse({**base, **dict(point)}, f"finetune ({benchmark})") for point in points]
