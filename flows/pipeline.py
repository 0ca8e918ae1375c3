"""The pipeline flow: runs the stale stages of dvc.yaml as subflows, and records each finished stage with DVC."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from prefect import flow
from prefect.flows import Flow

from flows.stage_flow import cancelled_when_stopped
from flows.stages.corpus import corpus
from flows.stages.finetune import finetune
from flows.stages.leaderboard import leaderboard
from flows.stages.pretrain import pretrain
from flows.stages.tokenizer import tokenizer
from flows.stages.tokens import tokens
from model.common.errors import UserError
from tasks.dvc.dvc_digests import pinned_data
from tasks.dvc.graph import Graph
from tasks.dvc.stage_snapshot import Snapshot
from tasks.jobs.supervision import JobsFailed
from tasks.prefect_tasks import cached, dated, record
from tasks.project.progress import echo
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml
from tasks.tracking import tracking

STAGE_FLOWS: dict[str, Flow[Any, Any]] = {
    stage.name: stage for stage in (corpus, tokenizer, tokens, pretrain, finetune, leaderboard)
}


def run_stale_stages(allow_missing: bool = False) -> list[str]:
    """Bring every stage of dvc.yaml up to date.

    Args:
        allow_missing: Publish a leaderboard even if fine-tuning jobs failed; neither stage is recorded then.

    Returns:
        The stages that ran.
    """
    project = Project.find()
    with (
        closing(Graph(project)) as graph,
        tracking.session(project, read_yaml(project.params_path), pinned_data(project)),
    ):
        ran: list[str] = []
        failure: JobsFailed | None = None
        for stage in graph.stages:
            stage_flow = STAGE_FLOWS.get(stage)
            if stage_flow is None:
                raise UserError(f"dvc.yaml: unknown stage '{stage}'; expected one of {', '.join(STAGE_FLOWS)}")
            status = graph.status(stage, after=frozenset(ran))
            if not status.reasons and failure is None:
                cached(stage)
                continue
            if failure is None and graph.restore(status):
                echo(f"{stage}: restored from the DVC cache")
                ran.append(stage)
                continue
            echo(f"{stage}: {'; '.join(status.reasons[:3])}{' …' if len(status.reasons) > 3 else ''}")
            snapshot = Snapshot.take(project, stage)
            options = {"allow_missing": allow_missing} if stage in ("finetune", "leaderboard") else {}
            try:
                stage_flow(**options)
            except JobsFailed as error:
                if not allow_missing:
                    raise
                failure = error
            ran.append(stage)
            if failure is None:
                record(stage, _recorder(graph, project, snapshot))
        if failure is not None:
            raise failure
        return ran


pipeline = flow(name="cloze", flow_run_name=dated("cloze run"))(cancelled_when_stopped(run_stale_stages))


def _recorder(graph: Graph, project: Project, snapshot: Snapshot) -> Callable[[], None]:
    """Return a function that records the stage, and undoes that if its parameters were edited at the same moment."""

    def commit() -> None:
        lock_file = project.root / "dvc.lock"
        before = lock_file.read_bytes() if lock_file.exists() else None
        graph.record(snapshot.stage)
        try:
            snapshot.verify(project)
        except UserError:
            if before is None:
                lock_file.unlink()
            else:
                lock_file.write_bytes(before)
            raise

    return commit
