"""The retrain flow: on a schedule or on demand, retrains if anything changed, and promotes a better encoder."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

from prefect import flow, runtime
from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed

from flows.fetch_flow import fetch
from flows.pipeline import run_stale_stages
from flows.worker_flows import check_data, locked_project, show_board, stoppable
from model.common.errors import Paused, UserError
from tasks.dvc.graph import Graph
from tasks.fetch.fetch_sources import chosen, open_record, stale
from tasks.params.root import Params, load_params
from tasks.prefect_tasks import dated, step
from tasks.project import signals
from tasks.project.progress import echo
from tasks.project.project import Project
from tasks.project.workspace import Busy
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


@flow(name="retrain", flow_run_name=dated("retrain"), log_prints=True)
def retrain(force: bool = False, wait_seconds: int = 21_600) -> Any:
    """Fetch the sources; if data, parameters or code changed, train, evaluate the gate, promote, push and report.

    Args:
        force: Evaluate the gate and report even if nothing changed.
        wait_seconds: How many seconds to wait for another run in this directory before skipping.
    """
    with stoppable() as stop:
        try:
            with locked_project("retrain", wait_seconds) as project:
                return _retrain_and_report(project, force)
        except Busy as busy:  # without the lock, nothing may be written to the project or to MLflow
            return _show_report(RetrainReport("skipped", str(busy)))
    return stop.state


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
    _fetch(project, params)
    check_data(project, accept=params.retrain.accept_data)
    reasons = changes(project)
    if not reasons and not force:
        before = last_judged(project)
        reason = f"data, parameters and code have not changed since {before['when']}"
        return _finish(project, RetrainReport("skipped", f"{reason} ({before['version']} {before['outcome']})"))
    for reason in reasons:
        echo(reason)
    measure_drift = step(_measure_drift, name="profile-corpus")
    if drift.kept(profiles_dir(project)) is None:
        measure_drift(project)
    ran = run_stale_stages()
    corpus_drift = measure_drift(project)
    show_board(project)
    done: Promotion = step(_register_and_promote, name="gate")(project)
    outcome: Outcome = "promoted" if done.promoted else "refused" if done.event else "already champion"
    branch = commit_on_branch(
        project, params.retrain, f"Retraining: {done.version}: {outcome}\n\n{done.verdict.reason}"
    )
    where = f"Branch {branch}" if branch else "Nothing to commit"
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
        done.verdict,
        corpus_drift,
        f"{where}; {pushed}.",
    )
    state = _finish(project, report)
    if push_error is not None:
        raise push_error
    remember(project, report.record())
    _keep_profile(project)
    return state


def _finish(project: Project, report: RetrainReport) -> Any:
    """Write the report to a file, to Prefect and to MLflow, and return the state of the run."""
    page = write_report(project, report)
    state = _show_report(report)
    track(project, report, page, lock_digest(project), str(runtime.flow_run.id or ""))
    echo(f"report: {os.path.relpath(page)}")
    return state


def _show_report(report: RetrainReport) -> Any:
    echo(f"{report.title}: {report.reason}")
    create_markdown_artifact(key="retrain-report", markdown=report.markdown())
    return Completed(name=report.outcome.capitalize(), message=f"{report.title}: {report.reason}")


def _register_and_promote(project: Project) -> Promotion:
    return promote(project, register(project))


def changes(project: Project) -> list[str]:
    """Return the reasons to retrain: stages that are out of date, or a result that no gate has evaluated."""
    with closing(Graph(project)) as graph:
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


def _fetch(project: Project, params: Params) -> None:
    wanted = params.retrain.fetch and params.fetch.sources
    if wanted and stale(open_record(project), chosen(params.fetch, []), refresh=True):
        fetch(params_path=str(project.params_path), names=[], refresh=True)
