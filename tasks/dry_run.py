"""What `cloze run` would do: the stages with the reasons, the number of jobs, and the expected time. Writes nothing."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from model.common.ownership import newest_owner
from model.common.state_files import read_state
from model.config.encoder import EncoderShape
from model.config.pretraining import PretrainRun
from tasks import preflight
from tasks.cluster.cluster_job import ClusterJob
from tasks.cluster.dask_cluster import POOL_STAGES, workers_job
from tasks.cluster.launchers import launcher_named
from tasks.dvc.earlier_outputs import EarlierOutputs
from tasks.dvc.graph import Graph
from tasks.dvc.integrity import cache_of, files_of, object_path
from tasks.finetune.plan import PlannedFinetune, Planner, find_encoders
from tasks.finetune.scheduler import JobScheduler
from tasks.jobs.resources import num_cores
from tasks.params.finetune import FinetuneParams
from tasks.params.root import Params, load_params
from tasks.pretrain.pretrain import earlier_files, finished, plan_encoders
from tasks.project.project import Project
from tasks.project.stage_versions import code_version
from tasks.tracking.tracking import STAGES

MAX_REASONS = 4
_TRAINING = ("pretrain", "finetune")  # other parameters give other outputs, so the stages after them run


Action = Literal["up to date", "restore", "run", "run or restore", "run if an input changes"]


@dataclass(frozen=True)
class PlannedStage:
    """What a run would do with a stage."""

    stage: str
    action: Action
    reasons: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    """Stages that would run before and whose outputs this stage reads."""

    def __str__(self) -> str:
        text = {
            "restore": "would be restored from the DVC cache",
            "run": "would run",
            "run or restore": "would run or be restored",
            "run if an input changes": "would run if the output of",
        }.get(self.action, self.action)
        if self.action == "run if an input changes":
            text += f" {_either(self.inputs)} changes"
        elif self.reasons:
            text += f": {_shortened(self.reasons)}"
        return f"{self.stage:<12} {text}"


@dataclass(frozen=True)
class DryRun:
    """What a run would do: its stages, and the training jobs and the time if any stage would run."""

    stages: list[PlannedStage]
    pretrain: list[str] = field(default_factory=list)
    """Encoders to pre-train."""
    num_finetune_jobs: int = 0
    finetune_jobs: str = ""
    """The fine-tuning jobs in words; empty if the stage would not run."""
    seconds: float | None = 0.0
    """Expected time; None without an earlier run to estimate it from."""
    submissions: tuple[str, ...] = ()
    """Batch scripts that would be submitted to Slurm, of encoders and of workers."""

    def record(self) -> dict[str, Any]:
        """Content of `cloze run --dry-run --json`."""
        return {
            "stages": [asdict(one) for one in self.stages],
            "pretrain": self.pretrain,
            "num_finetune_jobs": self.num_finetune_jobs,
            "seconds": self.seconds,
            "submissions": self.submissions,
        }

    def lines(self) -> list[str]:
        """Describe the stages, and in the last line the size of the run."""
        scripts = [f"\nsbatch --parsable <<'END'\n{script}END" for script in self.submissions]
        return [*map(str, self.stages), self._size(), *scripts]

    def _size(self) -> str:
        restored = sum(one.action == "restore" for one in self.stages)
        runs = [one for one in self.stages if one.action not in ("up to date", "restore")]
        if not runs:
            return "nothing would run" + (f"; {_counted(restored, 'stage')} would be restored" if restored else "")
        limit = "" if all(one.action == "run" for one in runs) else "at most "
        parts = [f"{limit}{len(runs)} of {len(self.stages)} stages"]
        if self.pretrain:
            names = ", ".join(self.pretrain[:3]) + (", …" if len(self.pretrain) > 3 else "")
            parts.append(f"{_counted(len(self.pretrain), 'encoder')} to pre-train ({names})")
        if self.finetune_jobs:
            parts.append(self.finetune_jobs)
        return f"{', '.join(parts)}; {_expected(self.seconds)}"


def dry_run(project: Project, params_path: Path | None, accept_data: bool) -> DryRun:
    """Plan a run.

    Args:
        project: the project, or the workspace of `params_path` if it exists.
        params_path: parameters that the run would use instead of params.yaml.

    Raises:
        UserError: the run would be refused; see `tasks.preflight.check` and `Graph.check_data`.
    """
    params = load_params(params_path or project.params_path)
    with (
        contextlib.closing(Graph(project, params_path, may_write=False)) as graph,
        tempfile.TemporaryDirectory() as folder,
    ):
        graph.check_data(accept_data)
        preflight.check(project, params, may_write=False)
        stages: list[PlannedStage] = []
        runs: dict[str, list[str]] = {}
        certain: set[str] = set()
        restored: dict[str, str] = {}
        for stage in graph.stages:
            status = graph.status(stage, upstream=restored)
            upstream = [one for one in graph.inputs_of(stage) if one in runs]
            reasons = status.reasons
            action: Action
            if not reasons and not upstream:
                action = "up to date"
            elif not upstream and (found := graph.would_restore(status, restored)) is not None:
                restored |= found
                action = "restore"
            else:
                runs[stage] = upstream
                trained = [one for one in upstream if one in certain and one in _TRAINING]
                reasons = (*reasons, *(f"follows {one}" for one in trained))
                if trained or status.is_first or (reasons and not upstream):
                    certain.add(stage)
                    action = "run"
                else:  # the cache may have its output for what the stages before will write
                    action = "run or restore" if reasons else "run if an input changes"
            stages.append(PlannedStage(stage, action, tuple(dict.fromkeys(reasons)), tuple(upstream)))
        if not runs:
            return DryRun(stages)
        build = _outputs_as_restored(project, restored, Path(folder))
        work = _Work(project, params, runs, build)
        jobs = work.num_jobs, work.finetune_jobs()
        return DryRun(stages, work.new_encoders, *jobs, work.seconds(), tuple(work.submissions()))


def _expected(seconds: float | None) -> str:
    if seconds is None:
        return "no earlier run to estimate the time from"
    return f"about {math.ceil(seconds / 60)} min" if seconds > 90 else f"about {math.ceil(seconds)} s"


def _shortened(reasons: Sequence[str]) -> str:
    rest = len(reasons) - MAX_REASONS
    return "; ".join(reasons[:MAX_REASONS]) + (f"; {rest} more" if rest > 0 else "")


def _either(stages: Sequence[str]) -> str:
    *others, last = stages
    return f"{', '.join(others)} or {last}" if others else last


def _outputs_as_restored(project: Project, restored: Mapping[str, str], build: Path) -> Path:
    """Fill `build` with links: to the files of the restored outputs in DVC's cache, and to the other outputs."""
    objects = cache_of(project)
    for stage in STAGES:
        source, output = project.build / stage, f"build/{stage}"
        if output in restored:
            _, *files = files_of({output: restored[output]}, objects)
            links = {file.path.removeprefix(f"{output}/"): object_path(objects, file.md5) for file in files}
        else:
            links = {path.name: path for path in source.iterdir()} if source.is_dir() else {}
        _link(build / stage, links)
    return build


def _link(folder: Path, links: Mapping[str, Path]) -> None:
    for name, target in links.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)


class _Work:
    """The training jobs of a run, and the time they take, as far as both are known before it starts.

    Args:
        build: the outputs before the first stage runs; see `_outputs_as_restored`.
    """

    def __init__(self, project: Project, params: Params, runs: dict[str, list[str]], build: Path) -> None:
        self._project, self._params, self._runs, self._build = project, params, runs, build
        self._encoders = {
            name: params.pretrain.recipe_of(encoder)
            for encoder in params.pretrain.encoders
            for name in params.pretrain.seeds_of(encoder)
        }
        self._planned: dict[str, PretrainRun] = {}
        self.new_encoders = self._untrained() if "pretrain" in runs else []
        self._finetune = params.finetune.with_tasks(project.data)
        self.num_jobs = self._count_jobs() if "finetune" in runs else 0

    def finetune_jobs(self) -> str:
        """Describe the fine-tuning jobs as encoders times benchmarks, grid and seeds; empty if none may run."""
        if "finetune" not in self._runs:
            return ""
        finetune = self._finetune
        encoders = [*self._encoders, *(encoder.name for encoder in finetune.encoders)]
        factors = [_counted(len(encoders), "encoder"), _counted(len(finetune.benchmarks), "benchmark")]
        factors += _grid(finetune)
        total = len(encoders) * _jobs_per_encoder(finetune)
        share = f"{self.num_jobs} of {total}" if self.num_jobs < total else f"{total}"
        return f"{share} fine-tuning jobs ({' × '.join(factors)})"

    def submissions(self) -> Iterator[str]:
        """Yield what would be submitted to the cluster for each new encoder, with DIGEST if an input will change, and
        for the workers of stages."""
        cluster = self._params.cluster
        launcher = launcher_named(cluster.launcher, cluster)
        if launcher is None:
            return
        for stage in POOL_STAGES:
            workers = workers_job(stage, self._params, self._project.runs) if stage in self._runs else None
            if workers is not None:
                yield launcher.manifest(workers)
        folder, machine = self._project.runs / "pretrain", self._params.pretrain_machine
        for name in self.new_encoders:
            job = self._planned.get(name) or PretrainRun(
                name=name,
                digest="DIGEST",
                tokens_dir=self._build / "tokens",
                tokenizer_dir=self._build / "tokenizer",
                run_dir=folder / f"{name}-DIGEST",
                shape=EncoderShape(preset="base"),
                recipe=self._encoders[name],
                machine=machine,
            )
            if job.recipe.phases:
                attempt = 1 + getattr(newest_owner(job.run_dir), "attempt", 0)
                run = job.model_copy(update={"attempt": attempt})
                yield launcher.manifest(ClusterJob.of_pretraining(run, cluster.pretrain, self._project.root))

    def seconds(self) -> float | None:
        """Expected time, from the durations of earlier runs in this directory; None without one."""
        seconds = 0.0
        for stage in self._runs:
            known = {"pretrain": self._pretrain_seconds, "finetune": self._finetune_seconds}.get(stage)
            own = known() if known is not None else read_state(self._record(stage)).get("seconds")
            if own is None:
                return None
            seconds += own
        return seconds

    def _record(self, stage: str) -> Path:
        return self._project.runs / "stages" / f"{stage}.json"

    def _untrained(self) -> list[str]:
        """List the encoders without a result; with other tokens, all of them."""
        if self._runs["pretrain"]:
            return list(self._encoders)
        project, pretrain_dir = self._project, self._build / "pretrain"
        planned = plan_encoders(
            self._params.pretrain,
            self._build / "tokens",
            self._build / "tokenizer",
            project.data,
            project.runs / "pretrain",
            code_version(project, "pretrain"),
            self._params.fetch.models,
            self._params.pretrain_machine,
        )
        self._planned = {one.name: one for one in planned}
        earlier = EarlierOutputs(project, "pretrain", may_write=False)
        untrained = []
        for one in planned:
            if finished(one, pretrain_dir) is not None:
                continue
            files = earlier_files(one, earlier)
            if files is None:
                untrained.append(one.name)
                continue
            (pretrain_dir / one.name).unlink(missing_ok=True)
            _link(pretrain_dir / one.name, {name: earlier.path(file) for name, file in files.items()})
        return untrained

    def _count_jobs(self) -> int:
        """Count the jobs without a result; an encoder that is trained anew has none."""
        number = len(self.new_encoders) * _jobs_per_encoder(self._finetune)
        build, runs_dir = self._build, self._project.runs / "finetune"
        kept = [name for name in self._encoders if name not in self.new_encoders]
        if not (build / "pretrain").is_dir():
            return number + len(self._params.finetune.encoders) * _jobs_per_encoder(self._finetune)
        found = find_encoders(self._params.finetune.encoders, build / "pretrain", self._project.data)
        found = [one for one in found if one.name in kept or one.kind == "external"]
        version = code_version(self._project, "finetune")
        planner = Planner(self._params.finetune, found, self._project.data, runs_dir, version)
        earlier = EarlierOutputs(self._project, "finetune", may_write=False)
        scheduler = JobScheduler(planner, runs_dir, build / "finetune", earlier)
        return number + sum(isinstance(one, PlannedFinetune) for one in scheduler.left())

    def _pretrain_seconds(self) -> float | None:
        phases = [phase for name in self.new_encoders for phase in self._encoders[name].phases]
        num_tokens = sum(phase.num_steps * phase.batch_size * phase.sequence_length for phase in phases)
        paces = list(_paces(self._project.runs / "pretrain", lambda timing: timing.get("num_tokens")))
        if not num_tokens:
            return 0.0
        return num_tokens * max(paces) if paces else None

    def _finetune_seconds(self) -> float | None:
        paces = list(_paces(self._project.runs / "finetune", lambda _: 1))
        if not paces:
            return None
        slots = min(num_cores(), self._params.finetune.num_workers or num_cores())
        return self.num_jobs * sum(paces) / len(paces) / slots


def _paces(folder: Path, units: Callable[[dict[str, Any]], float | None]) -> Iterator[float]:
    """Seconds per unit of the jobs that ran in this directory."""
    for path in folder.glob("*/timing.json"):
        timing = read_state(path)
        if timing.get("seconds") and (number := units(timing)):
            yield timing["seconds"] / number


def _jobs_per_encoder(finetune: FinetuneParams) -> int:
    return sum(len(finetune.recipes(name)) for name in finetune.benchmarks) * len(finetune.seeds)


def _grid(finetune: FinetuneParams) -> list[str]:
    """Describe the grid and the seeds; benchmarks with other grids make the number of recipes a range."""
    sizes = [len(finetune.recipes(name)) for name in finetune.benchmarks]
    recipes = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    parts = [] if max(sizes) == 1 else [f"{recipes} recipes"]
    return [*parts, *([_counted(len(finetune.seeds), "seed")] if len(finetune.seeds) > 1 else [])]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
