"""The parts that stage flows share: snapshot, tracking, progress bars, device limit, publication, concurrent jobs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import queue
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prefect import Flow, flow, get_run_logger, runtime
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext, TaskRunContext
from prefect.states import Cancelled
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task

from flows import links
from model.common.config_base import Settings
from model.common.errors import Paused, UserError
from model.common.files import digest_of, read_json
from model.common.run_dir import RunDir
from model.common.state_files import write_state
from tasks import preflight
from tasks.cluster.dask_cluster import is_remote
from tasks.dvc import integrity
from tasks.dvc.integrity import pinned_data
from tasks.dvc.stage_snapshot import Snapshot
from tasks.jobs.resources import gpus
from tasks.jobs.supervision import JobFailed, JobsFailed
from tasks.params.root import Params, load_params
from tasks.project import signals
from tasks.project.log_redaction import clean_errors
from tasks.project.progress import Bar, bars, duration, echo, working
from tasks.project.project import Project
from tasks.project.workspace import follow, git_commit, publish, staging, timestamp
from tasks.project.yaml_files import read_yaml
from tasks.registry.artifacts import published_models
from tasks.registry.mlflow_model import write_model
from tasks.servers.server_plan import DEVICES_VARIABLE
from tasks.tracking import tracking
from tasks.tracking.spool import link_or_copy

_SECONDS_BETWEEN = 0.5  # between two looks for resources that come by themselves
_MODEL = "model"  # directory in the artifacts of a training job's MLflow run
STOPPED = "stopped; rerun it to resume"


def stage_flow(name: str) -> Callable[[Callable[..., Any]], Flow[..., Any]]:
    """Make a Prefect flow of a stage's function. A run that was asked to stop ends as Cancelled, not as Failed."""
    return lambda function: flow(name=name, flow_run_name=name)(cancelled_when_stopped(function))


def counted(stage: str) -> str:
    """Return the stage with its place in the pipeline, such as "[5/6] finetune"."""
    return f"[{tracking.STAGES.index(stage) + 1}/{len(tracking.STAGES)}] {stage}"


def cancelled_when_stopped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that an exception after a request to stop becomes Prefect's state Cancelled."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except BaseException as error:
            if not signals.requested.is_set() or isinstance(error, UserError):
                raise
            return Cancelled(message=STOPPED)

    return run


@dataclass(frozen=True)
class StageRun:
    """One run of one stage."""

    name: str
    project: Project
    params: Params
    snapshot: Snapshot
    bars: Callable[..., Bar]
    tracking: tracking.Tracking
    out_dir: Path
    """A new directory, published as build/<name> if the block succeeds."""
    artifacts: list[tuple[str, str]] = field(default_factory=list)
    """Parts of the output to log to MLflow ("" for all of it), each with its directory there."""
    when_published: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call after the output is published."""

    @property
    def published(self) -> Path:
        """Published output of the stage, from before this run."""
        return self.project.build / self.name

    @property
    def runs_dir(self) -> Path:
        """Directory of the stage's active jobs, logs and records."""
        return self.project.runs / self.name

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """Path → MD5 of the inputs, as recorded by DVC when the stage began."""
        return integrity.digests(self.project)

    def add_bar(self, name: str, text: str = "loading", poll: Callable[[Bar], None] | None = None) -> Bar:
        """Add a progress bar, which also writes to the log of the Prefect run that calls this."""
        return self.bars(name, text, poll, get_run_logger().info)

    @contextlib.contextmanager
    def track_job(
        self,
        digest: str,
        name: str,
        job: Settings,
        tags: dict[str, str],
        run_dir: RunDir,
        artifacts: list[tuple[Path, str]],
        inputs: Mapping[str, str],
    ) -> Iterator[dict[str, float]]:
        """Track a job as an MLflow run. The block fills the dictionary with the job's final metrics.

        Args:
            inputs: data that the job reads: path relative to the project → context (training or validation).
        """
        tags = {f"cloze.{tag}": value for tag, value in {"stage": self.name, **tags}.items()}
        tags["mlflow.source.name"] = f"cloze {self.name}"
        tags["mlflow.note.content"] = links.job_description(self.project, name)
        data = [
            tracking.DataInput(path, self.digests[path], use) for path, use in inputs.items() if path in self.digests
        ]
        self.tracking.begin(digest, name, tags, job.model_dump(mode="json"), run_dir.metrics_log, data)
        metrics: dict[str, float] = {}
        try:
            yield metrics
        except BaseException:
            self.tracking.end(digest, "KILLED" if signals.requested.is_set() else "FAILED", metrics, artifacts)
            raise
        self.tracking.end(digest, "FINISHED", metrics, artifacts)


@contextlib.contextmanager
def tracked(project: Project, last: bool = True, name: str = "") -> Iterator[tracking.Tracking]:
    """Track the pipeline run around this block in MLflow, with links to the other pages."""
    params = load_params(project.params_path)
    encoders = [one.name for one in params.pretrain.encoders] + [one.name for one in params.finetune.encoders]
    benchmarks = [*params.finetune.benchmarks, *params.finetune.tasks]
    about = links.description(project, encoders, benchmarks, params.finetune.seeds)
    values, data = read_yaml(project.params_path), pinned_data(project)
    is_outermost = not tracking.is_open()
    try:
        with tracking.session(project, values, data, last, name, about) as tracker:
            if is_outermost:
                tracker.tag({"cloze.prefect_run": str(runtime.flow_run.id)})
            yield tracker
    finally:
        if is_outermost:  # the id of the run in MLflow is known now
            with contextlib.suppress(Exception):  # without Prefect's server, only a link is missing
                links.show_pages(project, tracking.pipeline_key(project, values, data))


def note_outputs(tracker: tracking.Tracking, project: Project, stages: Sequence[str]) -> None:
    """Log what DVC has recorded for stages that are up to date: the MD5 of outputs, the files of DVC, and models."""
    outputs = {path: md5 for stage in stages for path, md5 in integrity.outputs(project, stage).items()}
    files = [(project.root / name, "dvc") for name in ("dvc.yaml", integrity.LOCK, integrity.PIN)]
    tracker.tag({f"cloze.dvc.{path}": md5 for path, md5 in outputs.items()}, [*files, (project.params_path, "dvc")])
    weights = load_params(project.params_path).tracking.weights
    if "pretrain" in stages and weights != "none":
        records = project.build.glob("pretrain/*/metrics.json")
        _log_models(tracker, project, "build/pretrain", {read_json(path)["digest"]: path.parent for path in records})
    if "finetune" in stages and weights == "all":
        models = {one.job: one.directory for one in published_models(project.build / "finetune")}
        _log_models(tracker, project, "build/finetune", models)


def _log_models(tracker: tracking.Tracking, project: Project, output: str, folders: Mapping[str, Path]) -> None:
    """Log models below an output (digest of the training job → directory) in the MLflow runs of their jobs, once."""
    todo = {digest: folder for digest, folder in folders.items() if tracker.lacks(digest, _MODEL)}
    if not todo:
        return
    tracking.import_mlflow()
    md5s, objects = integrity.recorded_files(project, output) or {}, integrity.cache_of(project)

    def link(source: Path, target: Path) -> None:
        """Link the object in DVC's cache, which stays as it is."""
        md5 = md5s.get(source.relative_to(project.root / output).as_posix(), "")
        cached = integrity.object_path(objects, md5)
        link_or_copy(cached if cached.is_file() else source, target)

    for digest, folder in todo.items():
        with staging(project, "model") as staged:
            write_model(folder, staged, _MODEL, link)
            tracker.attach(digest, staged, _MODEL)


@contextlib.contextmanager
def stage_run(name: str) -> Iterator[StageRun]:
    """Run a stage: the block writes into `out_dir`, which is published if the stage's inputs have not changed.

    Raises:
        UserError: parameters or inputs were changed while the stage ran; nothing is published.
    """
    project = Project.find()
    with contextlib.ExitStack() as stack:
        stack.enter_context(clean_errors())  # Prefect stores the messages of exceptions
        stack.enter_context(signals.keep_handling_signals())
        params = load_params(project.params_path)
        if not is_remote(name, params):
            stack.enter_context(_hold_devices(name))
        preflight.check(project, params, [name])
        snapshot = Snapshot.take(project, name)
        integrity.check_inputs(project, name)
        start = time.monotonic()
        is_alone = not tracking.is_open()
        tracker = stack.enter_context(tracked(project, last=name == "leaderboard"))
        if is_alone:
            say(f"{counted(name)} of run {tracker.parent.name}")
            note_outputs(tracker, project, tracking.STAGES[: tracking.STAGES.index(name)])
        out_dir = stack.enter_context(staging(project, name))
        is_at = stack.enter_context(follow(out_dir))
        try:
            with bars() as add_bar:
                run = StageRun(name, project, params, snapshot, add_bar, tracker, out_dir)
                yield run
            with working("publishing the output"):
                snapshot.verify(project)
                md5 = integrity.note(project, name, out_dir)
                if not is_at(out_dir):  # a new one: tasks that write files make missing directories
                    raise FileNotFoundError(out_dir)
                publish(out_dir, run.published)
        except Exception as error:
            if isinstance(error, Paused) or is_at(out_dir) or is_at(project.build / name):
                raise
            deleted = project.relative(project.runs)
            raise UserError(f"{deleted} was deleted while {name} worked; run the same command again") from error
        tracker.note(artifacts=[(run.published / part, where) for part, where in run.artifacts])
        tracker.tag({f"cloze.dvc.{project.relative(run.published)}": md5})
        for act in run.when_published:
            act()
        record = {
            "stage": name,
            "seconds": round(time.monotonic() - start, 2),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "git_commit": git_commit(project),
            "data": pinned_data(project),
            "params": snapshot.params,
            "params_digest": digest_of(snapshot.params),
            "version": snapshot.version,
            "written": timestamp(),
        }
        write_state(project.runs / "stages" / f"{name}.json", record)
    say(f"{counted(name)}: done in {duration(time.monotonic() - start)}")


def say(line: str) -> None:
    """Print a line, and write it to the log of the current Prefect run."""
    context = TaskRunContext.get() or FlowRunContext.get()
    if context is not None and not context.log_prints:  # otherwise Prefect does
        get_run_logger().info(line.strip())
    echo(line)


def name_flow_run(tracker: tracking.Tracking) -> None:
    """End the name of the current Prefect flow run with the label of the pipeline run."""
    before = (runtime.flow_run.name or "").removesuffix(f" {tracker.run_name}")
    with get_client(sync_client=True) as client:
        client.update_flow_run(runtime.flow_run.id, name=f"{before} {tracker.parent.name}")


@contextlib.contextmanager
def _hold_devices(stage: str) -> Iterator[None]:
    """Hold all device slots of this machine while a training stage runs under a worker of `cloze up`.

    Raises:
        ConcurrencySlotAcquisitionError: the limit does not exist on the server (Prefect would treat it as unlimited).
    """
    limit = os.environ.get(DEVICES_VARIABLE)
    if limit is None or stage not in ("pretrain", "finetune"):
        yield
        return
    from prefect.concurrency.sync import concurrency

    with contextlib.ExitStack() as stack:
        for attempt in itertools.count():
            slots = concurrency(
                limit,
                occupy=max(1, len(gpus())),
                timeout_seconds=5,
                strict=True,
                raise_on_lease_renewal_failure=False,  # training survives a server that is away for a while
            )
            try:
                stack.enter_context(slots)
                break
            except TimeoutError:
                if signals.requested.is_set():
                    raise Paused("stopped") from None
                if attempt == 0:
                    echo(f"{counted(stage)}: waiting for another run that trains on this machine")
        yield


class FanOutQueue(Protocol):
    """Waiting jobs, in an order that the queue chooses."""

    def is_waiting(self) -> bool:
        """Check whether `take` may return a job later although none has ended meanwhile."""
        ...

    def take(self) -> str | None:
        """Return the next job to start now, or None if no job may start before another has ended."""
        ...

    def ended(self, name: str, outcome: Any) -> Any:
        """Record a job's result or failure.

        Returns:
            The outcome that counts; None if the job will start again.
        """
        ...


def fan_out(stage: str, run_job: Task[Any, Any], jobs: FanOutQueue, num_slots: int) -> None:
    """Run `run_job(name)` for every name in the queue, at most `num_slots` at a time.

    A job that fails does not stop the others.

    Raises:
        Paused: the run was asked to stop.
        JobsFailed: some jobs failed for good; the message names each.
    """
    failures: list[JobFailed] = []
    paused = False
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    with ThreadPoolTaskRunner[Any](max_workers=num_slots) as runner:
        running: dict[str, Any] = {}
        while True:
            while not signals.requested.is_set() and len(running) < num_slots and (name := jobs.take()) is not None:
                running[name] = runner.submit(run_job, {"name": name})
                running[name].add_done_callback(lambda _, name=name: ends.put(name))
            is_waiting = jobs.is_waiting() and not signals.requested.is_set()
            if not running and not is_waiting:
                break
            try:
                name = ends.get(timeout=_SECONDS_BETWEEN if is_waiting else None)
            except queue.Empty:
                continue
            outcome = jobs.ended(name, running.pop(name).result(raise_on_failure=False))
            if isinstance(outcome, JobFailed):
                failures.append(outcome)
            elif isinstance(outcome, Paused):
                paused = True
            elif isinstance(outcome, BaseException):
                was_asked = signals.requested.is_set()
                signals.requested.set()  # after a bug in Cloze, the other jobs save their state and stop
                while running:
                    running.pop(ends.get())
                if not was_asked:
                    signals.requested.clear()  # nobody asked for the stop: the run fails, and shows the error
                raise outcome
    if paused or signals.requested.is_set():
        raise Paused(f"{stage} was interrupted")
    if failures:
        raise JobsFailed(stage, failures)
