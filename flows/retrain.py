"""Training again, on a schedule or on demand: only what has changed, judged before it becomes the champion."""

from __future__ import annotations

import os
from typing import Any

from prefect import flow, runtime
from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed

from flows.cli.fetch import fetch
from flows.pipeline import walk
from flows.worker_flows import check_data, in_folder, show_board, stoppable
from model.common.errors import Paused, UserError
from tasks.dvc.graph import Graph
from tasks.fetch.bring import chosen, open_record, stale
from tasks.params.root import Params, load_params
from tasks.prefect_tasks import dated, step
from tasks.project import signals
from tasks.project.progress import say
from tasks.project.project import Project
from tasks.project.workspace import Busy
from tasks.registry import drift
from tasks.registry.promotion import Promotion, promote
from tasks.registry.registration import register
from tasks.registry.retrain import commit_on_branch, last_judged, lock_digest, profiles_dir, push, remember
from tasks.registry.retrain_report import Outcome, Report, track, write_report


@flow(name="retrain", flow_run_name=dated("retrain"), log_prints=True)
def retrain(force: bool = False, wait_seconds: int = 21_600) -> Any:
    """Fetch; if the corpus or the code has changed, train, judge, promote, push and report. Otherwise skip.

    Args:
        force: Judge and report though nothing has changed.
        wait_seconds: How long to wait for another run in this folder before skipping.
    """
    with stoppable() as stopped:
        try:
            with in_folder("retrain", wait_seconds) as project:
                return _reported(project, force)
        except Busy as busy:  # whoever holds the folder sends its entries to MLflow: nothing is written beside it
            return _shown(Report("skipped", str(busy)))
    return stopped.state


def _reported(project: Project, force: bool) -> Any:
    """Retrain; a failure is reported, too."""
    try:
        return _retrain(project, force)
    except Exception as error:
        if not isinstance(error, Paused) and not signals.requested.is_set():
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            _finish(project, Report("failed", reason.splitlines()[0] if reason else type(error).__name__))
        raise


def _retrain(project: Project, force: bool) -> Any:
    params = load_params(project.params_path)
    _fetch(project, params)
    check_data(project, accept=params.retrain.accept_data)
    reasons = changes(project)
    if not reasons and not force:
        before = last_judged(project)
        since = f"neither data, parameters nor code have changed since {before['when']}"
        return _finish(project, Report("skipped", f"{since}: {before['version']} {before['outcome']}"))
    for reason in reasons:
        say(reason)
    look = step(_look, name="profile-corpus")
    if drift.kept(profiles_dir(project)) is None:
        look(project)
    ran = walk()
    moved = look(project)
    show_board(project)
    done: Promotion = step(_judge, name="gate")(project)
    outcome: Outcome = "promoted" if done.promoted else "refused" if done.event else "already champion"
    branch = commit_on_branch(
        project, params.retrain, f"Retraining: {done.version}: {outcome}\n\n{done.verdict.reason}"
    )
    where = f"Branch {branch}" if branch else "Nothing to commit"
    fault = None
    try:
        pushed = push(project) if params.retrain.push else "not pushed: retrain.push is off"
    except UserError as error:  # what was decided stands, and is reported; the next retraining pushes again
        fault, pushed = error, f"NOT PUSHED: {error}"
    report = Report(
        outcome,
        done.verdict.reason,
        str(done.version),
        tuple(reasons or ["asked for"]),
        tuple(ran),
        done.verdict,
        moved,
        f"{where}; {pushed}.",
    )
    state = _finish(project, report)
    if fault is not None:
        raise fault
    remember(project, report.record())
    _keep_profile(project)
    return state


def _finish(project: Project, report: Report) -> Any:
    """Report on Prefect's page, in a file and to MLflow; the state that says so."""
    page = write_report(project, report)
    state = _shown(report)
    track(project, report, page, lock_digest(project), str(runtime.flow_run.id or ""))
    say(f"report: {os.path.relpath(page)}")
    return state


def _shown(report: Report) -> Any:
    say(f"{report.title}: {report.reason}")
    create_markdown_artifact(key="retrain-report", markdown=report.markdown())
    return Completed(name=report.outcome.capitalize(), message=f"{report.title}: {report.reason}")


def _judge(project: Project) -> Promotion:
    """Register what was trained, and make it the champion if the gate lets it pass."""
    return promote(project, register(project))


def changes(project: Project) -> list[str]:
    """Why there is something to do: stages that have to run, or a result that no retraining has judged."""
    graph = Graph(project)
    try:
        statuses = [graph.status(stage) for stage in graph.stages]
    finally:
        graph.close()
    reasons = [f"{status.name}: {'; '.join(status.reasons[:3])}" for status in statuses if status.reasons]
    if not reasons and last_judged(project).get("lock") != lock_digest(project):
        reasons = ["the results in build/ have not been judged yet"]
    return reasons


def _look(project: Project) -> drift.Drift | None:
    """How far the corpus has moved from the one that was judged last; None where none was, or there is no corpus."""
    corpus_dir, before = project.build / "corpus", drift.kept(profiles_dir(project))
    if not any(corpus_dir.glob("*.parquet")):
        return None
    if before is None:
        _keep_profile(project)
        return None
    old, tokenizer = before
    return drift.compare(old, drift.profile(corpus_dir, tokenizer))


def _keep_profile(project: Project) -> None:
    """The corpus as it is now is what the next one is compared with."""
    tokenizer = project.build / "tokenizer" / "tokenizer.json"
    if tokenizer.exists():
        drift.keep(drift.profile(project.build / "corpus", tokenizer), tokenizer, profiles_dir(project))


def _fetch(project: Project, params: Params) -> None:
    wanted = params.retrain.fetch and params.fetch.sources
    if wanted and stale(open_record(project), chosen(params.fetch, []), refresh=True):
        fetch(params_path=str(project.params_path), names=[], refresh=True)
