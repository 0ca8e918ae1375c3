"""Training again, on a schedule or on demand: only what has changed, judged before it becomes the champion."""

from __future__ import annotations

import os
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed

from flows.deployed import check_data, in_folder, show_board, stoppable
from flows.fetch import fetch
from flows.pipeline import pipeline as walk
from tasks.drift import Profile, compare, profile
from tasks.fetch.bring import chosen, open_record, stale
from tasks.graph import Graph
from tasks.params import Params, load_params
from tasks.progress import say
from tasks.project import Project
from tasks.registry.promotion import Promotion, promote
from tasks.registry.registering import register
from tasks.retrain import commit_on_branch, last_judged, lock_digest, push, remember, write_report
from tasks.steps import step
from tasks.workspace import Busy


@flow(name="retrain", log_prints=True)
def retrain(force: bool = False, wait_seconds: int = 21_600) -> Any:
    """Fetch; if the corpus or the code has changed, train, judge, promote, push and report. Otherwise skip.

    Args:
        force: Judge and report though nothing has changed.
        wait_seconds: How long to wait for another run in this folder before skipping.
    """
    with stoppable() as stopped:
        try:
            with in_folder("retrain", wait_seconds) as project:
                return _retrain(project, force)
        except Busy as busy:
            return _skip(str(busy))
    return stopped.state


def _retrain(project: Project, force: bool) -> Any:
    params = load_params(project.params_path)
    _fetch(project, params)
    check_data(project, accept=params.retrain.accept_data)
    reasons = changes(project)
    if not reasons and not force:
        before = last_judged(project)
        return _skip(f"neither data, parameters nor code have changed since {before['written']}: {before['reason']}")
    for reason in reasons:
        say(reason)
    corpus_dir, tokenizer = project.build / "corpus", project.build / "tokenizer" / "tokenizer.json"
    look = step(profile, name="profile-corpus")
    kept = tokenizer.read_bytes() if tokenizer.exists() else None
    old: Profile | None = look(corpus_dir, tokenizer) if corpus_dir.exists() and kept else None
    ran = walk.fn()
    drift = None
    if old is not None and kept is not None:
        old_tokenizer = project.runs / "retrain" / "tokenizer.json"
        old_tokenizer.parent.mkdir(parents=True, exist_ok=True)
        old_tokenizer.write_bytes(kept)
        drift = compare(old, look(corpus_dir, old_tokenizer))
    show_board(project)
    done = step(_judge, name="gate")(project)
    verdict, reason = done.verdict, done.verdict.reason
    outcome = "promoted" if done.promoted else "refused" if done.event else "already champion"
    title = f"{done.version}: {outcome}"
    pushed = push(project) if params.retrain.push else "not pushed: retrain.push is off"
    branch = commit_on_branch(project, params.retrain, f"Retraining: {title}\n\n{reason}")
    where = f"branch {branch}" if branch else "nothing to commit"
    record = {"promoted": done.promoted, "reason": f"{title} ({reason})", "ran": ran, "why": reasons}
    record |= {"verdict": verdict.record(), "drift": drift and drift.record(), "branch": branch, "pushed": pushed}
    parts = [f"# {title}", reason, "## Why", *(f"- {line}" for line in reasons or ["asked for"])]
    parts += ["## Verdict", verdict.markdown(), "## Corpus"]
    parts += [drift.markdown() if drift else "There was no corpus before to compare with."]
    parts += ["## Kept", f"{where}; {pushed}; stages that ran: {', '.join(ran) or 'none'}"]
    page = write_report(project, "\n\n".join(parts), record)
    create_markdown_artifact(key="retrain-report", markdown="\n\n".join(parts))
    remember(project, record)
    say(f"report: {os.path.relpath(page)}")
    return Completed(name=outcome.capitalize(), message=f"{title}: {reason}")


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


def _fetch(project: Project, params: Params) -> None:
    wanted = params.retrain.fetch and params.fetch.sources
    if wanted and stale(open_record(project), chosen(params.fetch, []), refresh=True):
        fetch(params_path=str(project.params_path), names=[], refresh=True)


def _skip(reason: str) -> Any:
    say(f"skipped: {reason}")
    create_markdown_artifact(key="retrain-report", markdown=f"# Skipped\n\n{reason}")
    return Completed(name="Skipped", message=reason)
