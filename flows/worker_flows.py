"""The flows that a worker runs: those of the command line, in the project's folder or in a workspace of its own.

Each waits for its turn: one run at a time works in a folder, whichever door it came through.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Cancelled
from pydantic import Field

from flows.pipeline import STAGE_FLOWS, walk
from model.common.errors import Paused, UserError
from model.common.files import read_json
from tasks.dvc.graph import Graph
from tasks.leaderboard.terminal import table_rows
from tasks.params.forms import params_file
from tasks.params.root import Params, StageParams, load_params
from tasks.prefect_tasks import dated
from tasks.project import signals
from tasks.project.progress import say
from tasks.project.project import Project
from tasks.project.workspace import Busy, run_lock
from tasks.project.worktree import prepare
from tasks.servers.server_plan import get

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,40}$")]
DAY = 86_400
ASK_SECONDS = 3.0


@flow(name="pipeline", flow_run_name=dated("pipeline"), log_prints=True)
def pipeline(accept_data: bool = False, allow_missing: bool = False, wait_seconds: int = DAY) -> Any:
    """Bring every stage up to date, with the parameters of params.yaml.

    Args:
        accept_data: Pin data/ as it is, though it differs from data.dvc.
        allow_missing: Publish a leaderboard though fine-tuning jobs have failed; neither is recorded then.
        wait_seconds: How long to wait for another run in this folder before giving up.
    """
    with stoppable() as stopped, in_folder("pipeline", wait_seconds) as project:
        check_data(project, accept_data)
        ran = walk(allow_missing=allow_missing)
        show_board(project)
        return ran
    return stopped.state


@flow(name="experiment", flow_run_name="experiment {name}", log_prints=True)
def experiment(params: StageParams, name: Name = "form", allow_missing: bool = False, wait_seconds: int = DAY) -> Any:
    """Run the pipeline with other parameters, in a workspace of its own; the project's outputs stay as they are.

    Args:
        params: The parameters. They were those of params.yaml when the deployment was made; only what you change
            differs.
        name: What the workspace's name begins with.
        allow_missing: Publish a leaderboard though fine-tuning jobs have failed; neither is recorded then.
        wait_seconds: How long to wait for another run in the folder before giving up.
    """
    with stoppable() as stopped:
        return run_with(params, name, allow_missing, wait_seconds)
    return stopped.state


@flow(name="fine-tune-task", flow_run_name="fine-tune {task}", log_prints=True)
def fine_tune_task(
    task: str,
    seeds: Annotated[list[int], Field(min_length=1)] = [1],  # noqa: B006 - the form shows it; never changed
    recipe: dict[str, Any] = {},  # noqa: B006
    grid: dict[str, list[int | float | str]] = {},  # noqa: B006
    wait_seconds: int = DAY,
) -> Any:
    """Fine-tune every encoder of params.yaml on one task, in a workspace of its own.

    Args:
        task: The benchmark, of those in params.yaml when the deployment was made.
        seeds: A job for each.
        recipe: Settings of FinetuneRecipe that differ from params.yaml's, as {"num_epochs": 2}.
        grid: The values to try, as {"learning_rate": [0.0001, 0.0002]}; empty tries none.
        wait_seconds: How long to wait for another run in the folder before giving up.
    """
    with stoppable() as stopped:
        project = Project.find()
        settings = load_params(project.params_path)
        if task not in settings.finetune.benchmarks:
            raise UserError(f"task: no '{task}' in params.yaml, only {', '.join(settings.finetune.benchmarks)}")
        values = settings.model_dump(mode="json")
        own = values["finetune"]["benchmarks"][task] or {}
        one = own | {"grid": None, "recipe": {}, "after": None, "keep_head": False}
        chosen = {"benchmarks": {task: one}, "seeds": list(seeds), "grid": grid, "prune": None}
        chosen["recipe"] = values["finetune"]["recipe"] | own.get("recipe", {}) | recipe
        values["finetune"] |= chosen
        return run_with(Params.parse(values, f"fine-tuning on {task}"), f"finetune-{task}", False, wait_seconds)
    return stopped.state


def _stage(name: str) -> Callable[..., Any]:
    takes_missing = name in ("finetune", "leaderboard")

    def with_missing(allow_missing: bool = False, wait_seconds: int = DAY) -> Any:
        options = {"allow_missing": allow_missing} if takes_missing else {}
        with stoppable() as stopped, in_folder(name, wait_seconds) as project:
            check_data(project, accept=False)
            return STAGE_FLOWS[name].fn(**options)
        return stopped.state

    def plain(wait_seconds: int = DAY) -> Any:
        return with_missing(wait_seconds=wait_seconds)

    made = with_missing if takes_missing else plain
    made.__doc__ = f"""Run the stage {name} once, whether or not it is up to date; `pipeline` records it with DVC.

    Args:
        allow_missing: Go on though fine-tuning jobs have failed.
        wait_seconds: How long to wait for another run in this folder before giving up.
    """
    made.__name__ = made.__qualname__ = f"{name}_stage"
    return flow(name=name, flow_run_name=dated(name), log_prints=True)(made)


corpus_stage = _stage("corpus")
tokenizer_stage = _stage("tokenizer")
tokens_stage = _stage("tokens")
pretrain_stage = _stage("pretrain")
finetune_stage = _stage("finetune")
leaderboard_stage = _stage("leaderboard")


class Stopped:
    """What a flow returns when it was asked to stop."""

    state: State[Any] | None = None


@contextlib.contextmanager
def stoppable() -> Iterator[Stopped]:
    """Cancelling on the page, or `cloze down`, ends the block: training saves its state, and the run is cancelled."""
    stopped, ended = Stopped(), threading.Event()
    with signals.on_signals():
        threading.Thread(target=_watch, args=(ended,), daemon=True, name="cancelling").start()
        try:
            yield stopped
        except BaseException:
            if not signals.requested.is_set():
                raise
            stopped.state = Cancelled(message="stopped; the same run again goes on from here")
        finally:
            ended.set()


def _watch(ended: threading.Event) -> None:
    """Ask the server whether this run is to be cancelled: Prefect's worker is told once, and may miss it."""
    api, run = os.environ.get("PREFECT_API_URL"), os.environ.get("PREFECT__FLOW_RUN_ID")
    while api and run and not ended.wait(ASK_SECONDS):
        found = get(f"{api}/flow_runs/{run}") or {}
        if isinstance(found, dict) and (found.get("state") or {}).get("type") == "CANCELLING":
            signals.requested.set()
            return


@contextlib.contextmanager
def in_folder(door: str, wait_seconds: float) -> Iterator[Project]:
    """Hold the folder around this process, after waiting for its turn.

    Raises:
        Busy: another run held it all the time.
    """
    project = Project.find()
    deadline, said = time.monotonic() + wait_seconds, False
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(run_lock(project, f"{door} (Prefect)"))
                break
            except Busy as busy:
                if time.monotonic() > deadline:
                    raise
                if not said:
                    say(f"{busy}; waiting")
                    said = True
            if signals.requested.wait(1.0):
                raise Paused("stopped")
        yield project


def run_with(params: StageParams, name: str, allow_missing: bool, wait_seconds: float) -> list[str]:
    """Run the pipeline with `params`: here if they are those of params.yaml, else in a workspace of their own."""
    with in_folder(name, wait_seconds) as project:
        check_data(project, accept=False)
        path = params_file(project, params, name)
        if path is None:
            say("the parameters are those of params.yaml: running in the project's folder")
            ran = walk(allow_missing=allow_missing)
            show_board(project)
            return ran
        workspace = prepare(project, path)
    say(f"workspace: {os.path.relpath(workspace)}")
    with _changed_folder(workspace), in_folder(name, wait_seconds) as inner:
        ran = walk(allow_missing=allow_missing)
        show_board(inner)
        return ran


def check_data(project: Project, accept: bool) -> None:
    """Refuse data that differs from its pin, or pin it."""
    graph = Graph(project)
    try:
        graph.check_data(accept)
    finally:
        graph.close()


def show_board(project: Project) -> None:
    """The leaderboard as an artifact of the run, whether or not its stage had to run."""
    path = project.build / "leaderboard" / "leaderboard.json"
    if path.exists():
        page = os.path.relpath(path.with_suffix(".html"), project.home)
        rows = table_rows(read_json(path))
        create_table_artifact(key="leaderboard", table=rows, description=f"Scores on dev, 0 to 100; the page: {page}")


@contextlib.contextmanager
def _changed_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
