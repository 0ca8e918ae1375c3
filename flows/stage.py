"""What every stage flow shares: its snapshot, tracking and bars, and publishing its output in one step."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect import Flow, flow
from prefect.states import Cancelled

from flows.device_limit import devices_for
from model.common.errors import UserError
from model.common.files import digest_of
from tasks.dvc import manifest
from tasks.dvc.stage_snapshot import Clock, Snapshot
from tasks.params.root import Params, load_params
from tasks.project import signals
from tasks.project.log_redaction import clean_errors
from tasks.project.progress import Bars, bars, say
from tasks.project.project import Project
from tasks.project.workspace import git_commit, publish, staging, write_record
from tasks.project.yaml_files import read_yaml
from tasks.tracking import tracking


def stage_flow(name: str) -> Callable[[Callable[..., Any]], Flow[..., Any]]:
    """A stage's function as its flow; one that was asked to stop ends as cancelled, not as failed."""

    def made(function: Callable[..., Any]) -> Flow[..., Any]:
        return flow(name=name, flow_run_name=name)(cancelled_when_stopped(function))

    return made


def cancelled_when_stopped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, but what it raises after a request to stop becomes Prefect's state Cancelled."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except BaseException as error:
            if not signals.requested.is_set() or isinstance(error, UserError):  # a mistake says what it is
                raise
            return Cancelled(message="stopped; the same run again goes on from here")

    return run


@dataclass(frozen=True)
class StageRun:
    """One run of one stage."""

    name: str
    project: Project
    params: Params
    snapshot: Snapshot
    bars: Bars
    tracking: tracking.Tracking
    out_dir: Path
    """A fresh folder; published as build/<name> when the block ends well."""
    artifacts: list[tuple[str, str]] = field(default_factory=list)
    """Parts of the output ("" for all of it) that MLflow gets too, and the folder there."""
    when_published: list[Callable[[], None]] = field(default_factory=list)
    """What is done once the output is in its place."""

    @property
    def published(self) -> Path:
        """The stage's output as it is before this run."""
        return self.project.build / self.name

    @property
    def runs_dir(self) -> Path:
        """Live jobs, logs and records of this stage."""
        return self.project.runs / self.name


@contextlib.contextmanager
def stage_run(name: str) -> Iterator[StageRun]:
    """Run a stage: the block writes into `out_dir`, which is published if nothing it started from has changed.

    Raises:
        UserError: parameters or inputs were changed meanwhile; nothing is published.
    """
    project = Project.find()
    # Prefect keeps the messages of errors, hence clean_errors.
    with clean_errors(), signals.still_on_signals(), devices_for(name), _run(project, name) as run:
        yield run


@contextlib.contextmanager
def _run(project: Project, name: str) -> Iterator[StageRun]:
    params = load_params(project.params_path)
    snapshot = Snapshot.take(project, name)
    manifest.check_inputs(project, name)
    clock = Clock()
    say(f"{name}")
    with (
        tracking.session(
            project, read_yaml(project.params_path), pinned_data(project), name == "leaderboard"
        ) as tracker,
        staging(project, name) as out_dir,
        bars() as shown,
    ):
        run = StageRun(name, project, params, snapshot, shown, tracker, out_dir)
        yield run
        snapshot.verify(project)
        manifest.note(project, name, out_dir)
        publish(out_dir, run.published)
        tracker.note(artifacts=[(run.published / part, where) for part, where in run.artifacts])
        for act in run.when_published:
            act()
        record = {
            "stage": name,
            "seconds": round(clock.seconds, 2),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "git_commit": git_commit(project),
            "data": pinned_data(project),
            "params": snapshot.params,
            "params_digest": digest_of(snapshot.params),
            "version": snapshot.version,
        }
        write_record(project.runs / "stages" / f"{name}.json", record)
    say(f"{name}: done in {clock.seconds:.1f} s")


def pinned_data(project: Project) -> str:
    """The digest that data.dvc pins; empty where nothing is pinned."""
    path = project.root / "data.dvc"
    if not path.exists():
        return ""
    outs = read_yaml(path).get("outs") or [{}]
    return str(outs[0].get("md5", ""))
