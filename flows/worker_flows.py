"""The flows that a Prefect worker runs: the pipeline, its stages, runs with other parameters, and retraining.

Only one run at a time works in a directory; a flow waits until the directory is free.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from prefect import Flow, flow, runtime, tags
from prefect.artifacts import create_markdown_artifact
from prefect.states import Cancelled, Completed, Failed
from pydantic import Field

from flows import links
from flows.fetch_flow import fetch
from flows.pipeline import STAGE_FLOWS, run_stale_stages
from flows.stage_flow import STOPPED
from model.common.errors import Paused, UserError
from model.common.redaction import redacted
from tasks import preflight
from tasks.dvc.graph import Graph
from tasks.fetch.fetch_sources import chosen, open_record, stale
from tasks.params.forms import PARAMS, experiment_values, params_file, task_values
from tasks.params.root import StageParams, load_params
from tasks.prefect_tasks import dated, step
from tasks.project import signals
from tasks.project.pages import markdown_link
from tasks.project.progress import echo, warn
from tasks.project.project import Project
from tasks.project.workspace import NAME_PATTERN, Busy, prepare, run_lock
from tasks.project.yaml_files import read_yaml
from tasks.registry import drift
from tasks.registry.champion import Promotion, promote
from tasks.registry.mlflow_registry import register
from tasks.registry.retrain import (
    Outcome,
    RetrainReport,
    commit_on_branch,
    last_judged,
    lock_digest,
    profiles_dir,
    push,
    remember,
    track,
    write_report,
)
from tasks.servers.server_plan import ANY_RUN, get
from tasks.tracking.tracking import pipeline_key

Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
Override = Annotated[str, Field(pattern=r"^[^=\s]+\s*=")]
DAY = 86_400
POLL_SECONDS = 3.0


def _stoppable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function of a flow: if the run is cancelled, or `cloze down` stops it, its state is Cancelled.

    Training saves its state first.
    """

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        ended = threading.Event()
        with signals.handle_signals():
            threading.Thread(target=_watch_for_cancellation, args=(ended,), daemon=True, name="cancelling").start()
            try:
                with tags(ANY_RUN):
                    return function(*arguments, **options)
            except BaseException as error:
                if signals.requested.is_set():
                    return Cancelled(message=STOPPED)
                if isinstance(error, UserError):
                    return Failed(message=redacted(str(error)))
                raise
            finally:
                ended.set()

    return run


def _watch_for_cancellation(ended: threading.Event) -> None:
    """Poll the server for the cancellation of this run, because Prefect notifies its worker only once."""
    api, run = os.environ.get("PREFECT_API_URL"), os.environ.get("PREFECT__FLOW_RUN_ID")
    while api and run and not ended.wait(POLL_SECONDS):
        found = get(f"{api}/flow_runs/{run}") or {}
        if isinstance(found, dict) and (found.get("state") or {}).get("type") == "CANCELLING":
            signals.requested.set()
            return


@flow(name="pipeline", flow_run_name=dated("pipeline"), log_prints=True)
@_stoppable
def pipeline(accept_data: bool = False, allow_missing: bool = False, wait_seconds: int = DAY) -> Any:
    """Bring every stage up to date, with the parameters in params.yaml.

    Args:
        accept_data: Pin the current content of data/, even if it differs from data.dvc.
        allow_missing: Publish a leaderboard even if fine-tuning jobs failed; neither stage is recorded then.
        wait_seconds: How many seconds to wait for another run in this directory before giving up.
    """
    with _locked_project("pipeline", wait_seconds) as project:
        preflight.statuses(project, accept_data)
        return _run_and_show(project, allow_missing)


@flow(name="experiment", flow_run_name="experiment {name}", log_prints=True)
@_stoppable
def experiment(
    name: Name = "form",
    base: str = PARAMS,
    overrides: list[Override] = [],  # noqa: B006 - the form shows it; never changed
    allow_missing: bool = False,
    wait_seconds: int = DAY,
    params: StageParams | None = None,
) -> Any:
    """Run the pipeline with other parameters, in a separate workspace; the project's outputs are not changed.

    Args:
        name: First part of the workspace's name.
        base: The parameter file to start from.
        overrides: Settings to change, one per line, such as pretrain.recipe.warmup_steps=300 or finetune.seeds=[1, 2].
            Encoders and sources are addressed by name, such as pretrain.encoders.scratch.seed=2.
        allow_missing: Publish a leaderboard even if fine-tuning jobs failed; neither stage is recorded then.
        wait_seconds: How many seconds to wait for another run in the directory before giving up.
        params: All parameters, instead of a base file. The form shows the values that params.yaml had when the
            deployment was created; leave it at None to use base and overrides alone.
    """
    project = Project.find()
    values = experiment_values(project, base, overrides, params)
    return _run_with_params(values, name, allow_missing, wait_seconds)


@flow(name="fine-tune-task", flow_run_name="fine-tune {task}", log_prints=True)
@_stoppable
def fine_tune_task(
    task: str,
    seeds: Annotated[list[int], Field(min_length=1)] | None = None,
    recipe: dict[str, Any] = {},  # noqa: B006 - the form shows it; never changed
    grid: dict[str, list[int | float | str]] | None = None,
    wait_seconds: int = DAY,
) -> Any:
    """Fine-tune every encoder in params.yaml on one task, in a separate workspace.

    Args:
        task: A benchmark or custom task of those that params.yaml listed when the deployment was created.
        seeds: Random seeds; each one adds a job. Empty uses those in params.yaml.
        recipe: Settings of FinetuneRecipe to change, such as {"num_epochs": 2}; not searched over.
        grid: Values for a grid search, such as {"learning_rate": [0.0001, 0.0002]}. Empty uses those in params.yaml.
        wait_seconds: How many seconds to wait for another run in the directory before giving up.
    """
    project = Project.find()
    values = task_values(project, task, seeds, recipe, grid)
    return _run_with_params(values, f"finetune-{task}", False, wait_seconds)


def _stage(name: str) -> Flow[..., Any]:
    def with_missing(allow_missing: bool = False, wait_seconds: int = DAY) -> Any:
        return run(wait_seconds, allow_missing=allow_missing)

    def plain(wait_seconds: int = DAY) -> Any:
        return run(wait_seconds)

    @_stoppable
    def run(wait_seconds: int, **options: bool) -> Any:
        with _locked_project(name, wait_seconds) as project:
            preflight.statuses(project)
            return STAGE_FLOWS[name].fn(**options)

    function = with_missing if name in ("finetune", "leaderboard") else plain
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


@contextlib.contextmanager
def _locked_project(flow_name: str, wait_seconds: float) -> Iterator[Project]:
    """Wait until no other run uses the project around the current directory, and lock it for the block.

    Raises:
        Busy: another run held the lock all the time.
    """
    project = Project.find()
    with run_lock(project, f"{flow_name} (Prefect)", wait_seconds):
        yield project


def _run_with_params(values: dict[str, Any], name: str, allow_missing: bool, wait_seconds: float) -> list[str]:
    """Run the pipeline in a separate workspace, or in the project if `values` are the content of params.yaml."""
    with _locked_project(name, wait_seconds) as project:
        preflight.statuses(project)
        path = params_file(project, values, name)
        if path is None:
            echo("the parameters are those in params.yaml: running in the project's directory")
            return _run_and_show(project, allow_missing, name)
        workspace, name = prepare(project, path, pipeline_key(project, read_yaml(path)), name)
    echo(f"workspace: {os.path.relpath(workspace)}")
    with contextlib.chdir(workspace), _locked_project(name, wait_seconds) as inner:
        preflight.statuses(inner)
        return _run_and_show(inner, allow_missing, name)


def _run_and_show(project: Project, allow_missing: bool, name: str = "") -> list[str]:
    ran = run_stale_stages(allow_missing=allow_missing, name=name)
    links.show_results(project)
    return ran


@flow(name="retrain", flow_run_name=dated("retrain"), log_prints=True)
@_stoppable
def retrain(force: bool = False, wait_seconds: int = 21_600) -> Any:
    """Fetch the sources; if data, parameters or code changed, train, evaluate the gate, promote, push and report.

    Args:
        force: Evaluate the gate and report even if nothing changed.
        wait_seconds: How many seconds to wait for another run in this directory before skipping.
    """
    try:
        with _locked_project("retrain", wait_seconds) as project:
            return _retrain_and_report(project, force)
    except Busy as busy:  # without the lock, nothing may be written to the project or to MLflow
        return _show_report(RetrainReport("skipped", str(busy)))


def _retrain_and_report(project: Project, force: bool) -> Any:
    try:
        return _retrain(project, force)
    except Exception as error:
        if not isinstance(error, Paused) and not signals.requested.is_set():
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            _finish(project, RetrainReport("failed", reason.splitlines()[0] if reason else type(error).__name__))
        raise


def _retrain(project: Project, force: bool) -> Any:
    params = load_params(project.params_path)
    has_sources = params.retrain.fetch and params.fetch.sources
    if has_sources and stale(open_record(project), chosen(params.fetch, []), refresh=True):
        fetch(params_path=str(project.params_path), names=[], refresh=True)
    preflight.statuses(project, params.retrain.accept_data)
    reasons = _reasons_to_retrain(project)
    if not reasons and not force:
        before = last_judged(project)
        reason = f"data, parameters and code have not changed since {before['when']}"
        return _finish(project, RetrainReport("skipped", f"{reason} ({before['version']} {before['outcome']})"))
    for reason in reasons:
        echo(reason)
    measure_drift = step(_measure_drift, name="profile-corpus")
    if drift.kept(profiles_dir(project)) is None:
        measure_drift(project)
    ran = _run_and_show(project, allow_missing=False)
    corpus_drift = measure_drift(project)
    done: Promotion = step(lambda: promote(project, register(project)), name="gate")()
    outcome: Outcome = "promoted" if done.promoted else "refused" if done.event else "already champion"
    message = f"Retraining: {done.version}: {outcome}\n\n{done.verdict.reason}"
    branch = commit_on_branch(project, params.retrain, message)
    where = f"Local branch {branch}" if branch else "Nothing to commit"
    push_error = None
    try:
        pushed = push(project) if params.retrain.push else "not pushed: retrain.push is off"
    except UserError as error:  # the decision is kept and reported; the next retraining pushes again
        push_error, pushed = error, f"NOT PUSHED: {error}"
    report = RetrainReport(
        outcome,
        done.verdict.reason,
        str(done.version),
        tuple(reasons or ["requested with force"]),
        tuple(ran),
        done.verdict if done.event else None,  # nothing was decided about the champion itself
        corpus_drift,
        f"{where}; {pushed}.",
    )
    state = _finish(project, report)
    if outcome == "refused":
        back = "git checkout -- dvc.lock data.dvc params.yaml && dvc checkout"
        warn(f"the project's directory has the refused results; to go back: {back}")
    if push_error is not None:
        raise push_error
    remember(project, report.record())
    _keep_profile(project)
    return state


def _finish(project: Project, report: RetrainReport) -> Any:
    """Write the report to a file, to Prefect and to MLflow, and return the state of the run."""
    page = write_report(project, report)
    state = _show_report(report, links.page_of(project, f"retrain/{page.name}"))
    track(project, report, page, lock_digest(project), str(runtime.flow_run.id or ""))
    echo(f"report: {os.path.relpath(page)}")
    return state


def _show_report(report: RetrainReport, page: str = "") -> Any:
    echo(f"{report.title}: {report.reason}")
    link = f"\n\n{markdown_link('Report page', page)}" if page else ""
    create_markdown_artifact(key="retrain-report", markdown=f"{report.markdown()}{link}")
    return Completed(name=report.outcome.capitalize(), message=f"{report.title}: {report.reason}")


def _reasons_to_retrain(project: Project) -> list[str]:
    with contextlib.closing(Graph(project)) as graph:
        statuses = [graph.status(stage) for stage in graph.stages]
    reasons = [f"{status.name}: {'; '.join(status.reasons[:3])}" for status in statuses if status.reasons]
    if not reasons and last_judged(project).get("lock") != lock_digest(project):
        reasons = ["the gate has not evaluated the results in build/ yet"]
    return reasons


def _measure_drift(project: Project) -> drift.Drift | None:
    """Measure the drift of the corpus since the last retraining; None without a corpus or a previous profile."""
    corpus_dir, before = project.build / "corpus", drift.kept(profiles_dir(project))
    if not any(corpus_dir.glob("*.parquet")):
        return None
    if before is None:
        _keep_profile(project)
        return None
    old, tokenizer = before
    return drift.compare(old, drift.profile(corpus_dir, tokenizer))


def _keep_profile(project: Project) -> None:
    tokenizer = project.build / "tokenizer" / "tokenizer.json"
    if tokenizer.exists():
        drift.keep(drift.profile(project.build / "corpus", tokenizer), tokenizer, profiles_dir(project))
