"""The flows that a Prefect worker runs: the pipeline, its stages, and runs with other parameters.

Only one run at a time works in a directory; a flow waits until the directory is free.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Cancelled
from pydantic import Field

from flows.pipeline import STAGE_FLOWS, run_stale_stages
from flows.stage_flow import STOPPED
from model.common.errors import Paused, UserError
from model.common.files import read_json
from tasks.dvc.graph import Graph
from tasks.leaderboard.page import table_rows
from tasks.leaderboard.schema import Leaderboard
from tasks.params.forms import params_file
from tasks.params.root import Params, StageParams, load_params
from tasks.prefect_tasks import dated
from tasks.project import signals
from tasks.project.progress import echo
from tasks.project.project import Project
from tasks.project.workspace import Busy, run_lock
from tasks.project.worktree import prepare
from tasks.servers.server_plan import get

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,40}$")]
DAY = 86_400
POLL_SECONDS = 3.0


@flow(name="pipeline", flow_run_name=dated("pipeline"), log_prints=True)
def pipeline(accept_data: bool = False, allow_missing: bool = False, wait_seconds: int = DAY) -> Any:
    """Bring every stage up to date, with the parameters in params.yaml.

    Args:
        accept_data: Pin the current content of data/, even if it differs from data.dvc.
        allow_missing: Publish a leaderboard even if fine-tuning jobs failed; neither stage is recorded then.
        wait_seconds: How many seconds to wait for another run in this directory before giving up.
    """
    with stoppable() as stop, locked_project("pipeline", wait_seconds) as project:
        check_data(project, accept_data)
        return _run_and_show(project, allow_missing)
    return stop.state


@flow(name="experiment", flow_run_name="experiment {name}", log_prints=True)
def experiment(params: StageParams, name: Name = "form", allow_missing: bool = False, wait_seconds: int = DAY) -> Any:
    """Run the pipeline with other parameters, in a separate workspace; the project's outputs are not changed.

    Args:
        params: The parameters. The form shows the values that params.yaml had when the deployment was created.
        name: First part of the workspace's name.
        allow_missing: Publish a leaderboard even if fine-tuning jobs failed; neither stage is recorded then.
        wait_seconds: How many seconds to wait for another run in the directory before giving up.
    """
    with stoppable() as stop:
        return _run_with_params(params, name, allow_missing, wait_seconds)
    return stop.state


@flow(name="fine-tune-task", flow_run_name="fine-tune {task}", log_prints=True)
def fine_tune_task(
    task: str,
    seeds: Annotated[list[int], Field(min_length=1)] = [1],  # noqa: B006 - the form shows it; never changed
    recipe: dict[str, Any] = {},  # noqa: B006
    grid: dict[str, list[int | float | str]] = {},  # noqa: B006
    wait_seconds: int = DAY,
) -> Any:
    """Fine-tune every encoder in params.yaml on one task, in a separate workspace.

    Args:
        task: The benchmark, one of those that params.yaml listed when the deployment was created.
        seeds: Random seeds; each one adds a job.
        recipe: Settings of FinetuneRecipe to change, such as {"num_epochs": 2}.
        grid: Values for a grid search, such as {"learning_rate": [0.0001, 0.0002]}; empty for no search.
        wait_seconds: How many seconds to wait for another run in the directory before giving up.
    """
    with stoppable() as stop:
        project = Project.find()
        settings = load_params(project.params_path)
        if task not in settings.finetune.benchmarks:
            raise UserError(f"task: params.yaml does not list '{task}', only {', '.join(settings.finetune.benchmarks)}")
        values = settings.model_dump(mode="json")
        own = values["finetune"]["benchmarks"][task] or {}
        one = own | {"grid": None, "recipe": {}, "after": None, "keep_head": False}
        chosen = {"benchmarks": {task: one}, "seeds": list(seeds), "grid": grid, "prune": None}
        chosen["recipe"] = values["finetune"]["recipe"] | own.get("recipe", {}) | recipe
        values["finetune"] |= chosen
        params = Params.parse(values, f"fine-tuning on {task}")
        return _run_with_params(params, f"finetune-{task}", False, wait_seconds)
    return stop.state


def _stage(name: str) -> Callable[..., Any]:
    takes_missing = name in ("finetune", "leaderboard")

    def with_missing(allow_missing: bool = False, wait_seconds: int = DAY) -> Any:
        options = {"allow_missing": allow_missing} if takes_missing else {}
        with stoppable() as stop, locked_project(name, wait_seconds) as project:
            check_data(project, accept=False)
            return STAGE_FLOWS[name].fn(**options)
        return stop.state

    def plain(wait_seconds: int = DAY) -> Any:
        return with_missing(wait_seconds=wait_seconds)

    function = with_missing if takes_missing else plain
    function.__doc__ = f"""Run the {name} stage once, even if it is up to date. Only `pipeline` records stages with DVC.

    Args:
        allow_missing: Publish the finished jobs even if other fine-tuning jobs failed.
        wait_seconds: How many seconds to wait for another run in this directory before giving up.
    """
    function.__name__ = function.__qualname__ = f"{name}_stage"
    return flow(name=name, flow_run_name=dated(name), log_prints=True)(function)


corpus_stage = _stage("corpus")
tokenizer_stage = _stage("tokenizer")
tokens_stage = _stage("tokens")
pretrain_stage = _stage("pretrain")
finetune_stage = _stage("finetune")
leaderboard_stage = _stage("leaderboard")


class StopState:
    """Holds the state that a flow returns if it was asked to stop."""

    state: State[Any] | None = None


@contextlib.contextmanager
def stoppable() -> Iterator[StopState]:
    """End the block when the run is cancelled or `cloze down` stops it; training saves its state first."""
    stop, ended = StopState(), threading.Event()
    with signals.handle_signals():
        threading.Thread(target=_watch_for_cancellation, args=(ended,), daemon=True, name="cancelling").start()
        try:
            yield stop
        except BaseException:
            if not signals.requested.is_set():
                raise
            stop.state = Cancelled(message=STOPPED)
        finally:
            ended.set()


def _watch_for_cancellation(ended: threading.Event) -> None:
    """Poll the server for the cancellation of this run: Prefect notifies its worker only once, and may miss it."""
    api, run = os.environ.get("PREFECT_API_URL"), os.environ.get("PREFECT__FLOW_RUN_ID")
    while api and run and not ended.wait(POLL_SECONDS):
        found = get(f"{api}/flow_runs/{run}") or {}
        if isinstance(found, dict) and (found.get("state") or {}).get("type") == "CANCELLING":
            signals.requested.set()
            return


@contextlib.contextmanager
def locked_project(flow_name: str, wait_seconds: float) -> Iterator[Project]:
    """Wait until no other run uses the project around the current directory, and lock it for the block.

    Raises:
        Busy: another run held the lock all the time.
    """
    project = Project.find()
    deadline, reported = time.monotonic() + wait_seconds, False
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(run_lock(project, f"{flow_name} (Prefect)"))
                break
            except Busy as busy:
                if time.monotonic() > deadline:
                    raise
                if not reported:
                    echo(f"{busy}; waiting")
                    reported = True
            if signals.requested.wait(1.0):
                raise Paused("stopped")
        yield project


def _run_with_params(params: StageParams, name: str, allow_missing: bool, wait_seconds: float) -> list[str]:
    """Run the pipeline in a separate workspace, or in the project if `params` are those in params.yaml."""
    with locked_project(name, wait_seconds) as project:
        check_data(project, accept=False)
        path = params_file(project, params, name)
        if path is None:
            echo("the parameters are those in params.yaml: running in the project's directory")
            return _run_and_show(project, allow_missing)
        workspace = prepare(project, path)
    echo(f"workspace: {os.path.relpath(workspace)}")
    with contextlib.chdir(workspace), locked_project(name, wait_seconds) as inner:
        return _run_and_show(inner, allow_missing)


def _run_and_show(project: Project, allow_missing: bool) -> list[str]:
    ran = run_stale_stages(allow_missing=allow_missing)
    show_board(project)
    return ran


def check_data(project: Project, accept: bool) -> None:
    """Refuse data that differs from its pin in data.dvc; with `accept`, pin it instead."""
    with contextlib.closing(Graph(project)) as graph:
        graph.check_data(accept)


def show_board(project: Project) -> None:
    """Attach the leaderboard to the run as an artifact, even if its stage was up to date."""
    path = project.build / "leaderboard" / "leaderboard.json"
    if path.exists():
        page = os.path.relpath(path.with_suffix(".html"), project.home)
        rows = table_rows(Leaderboard.parse(read_json(path), str(path)))
        create_table_artifact(key="leaderboard", table=rows, description=f"Scores on dev, from 0 to 100. Page: {page}")
