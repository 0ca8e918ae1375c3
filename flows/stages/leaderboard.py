"""The leaderboard stage: ranks all measured and published scores, as JSON, a page and plots."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from prefect.artifacts import create_table_artifact

from flows.stage_flow import StageRun, stage_flow, stage_run
from model.common.files import digest_of, read_json
from tasks.dvc.dvc_digests import pinned_data
from tasks.dvc.stage_snapshot import code_version
from tasks.leaderboard import history
from tasks.leaderboard.board import build_leaderboard, flat_metrics, flat_params, flat_tags
from tasks.leaderboard.inputs import Inputs
from tasks.leaderboard.page import table_rows
from tasks.leaderboard.schema import Leaderboard, SystemCost
from tasks.prefect_tasks import step
from tasks.project.workspace import git_commit
from tasks.project.yaml_files import read_yaml
from tasks.tracking.tracking import STAGES


@stage_flow("leaderboard")
def leaderboard(allow_missing: bool = False) -> None:
    """Build the leaderboard of the published fine-tuning jobs, and record it in the project's history."""
    with stage_run("leaderboard") as run:
        finetune_dir = run.project.build / "finetune"
        plan = read_json(finetune_dir / "plan.json")
        build = step(build_leaderboard, name="build-leaderboard")
        board = build(
            finetune_dir,
            run.project.build / "pretrain",
            plan["encoders"],
            plan["benchmarks"],
            run.out_dir,
            allow_missing=allow_missing,
            notes=run.params.leaderboard.notes,
            reference=run.params.leaderboard.champion,
        )
        create_table_artifact(key="leaderboard", table=table_rows(board), description="Scores on dev, from 0 to 100")
        cost = history.costs(run.project.runs / "finetune", board.measured)
        _track(run, board, cost)
        run.artifacts.append(("", "leaderboard"))
        run.when_published.append(lambda: _record(run, board, cost))


def _track(run: StageRun, board: Leaderboard, cost: Mapping[str, SystemCost]) -> None:
    """Log one MLflow run per system that has scores, and the averages to the pipeline's run."""
    scored = [system for system in board.measured if system.scores]
    averages = {f"average/{system.name}": system.average for system in scored if system.average is not None}
    run.tracking.note(metrics=averages)
    for system in scored:
        key = f"system-{system.digest}"
        name = f"{system.name} @{run.tracking.parent.key[:6]}"
        run.tracking.begin(key, name, flat_tags(board, system), flat_params(system), nested=False)
        run.tracking.end(key, "FINISHED", flat_metrics(board, system, cost.get(system.name)))


def _record(run: StageRun, board: Leaderboard, cost: Mapping[str, SystemCost]) -> None:
    """Write the record of the published leaderboard to the history, and log it to MLflow."""
    project = run.project
    facts = {
        "git_commit": git_commit(project),
        "data": pinned_data(project),
        "params_digest": digest_of(read_yaml(project.params_path)),
        "pipeline": run.tracking.parent.key,
        "workspace": "" if project.root == project.home else os.path.relpath(project.root, project.home),
        "host": socket.gethostname(),
        "versions": {stage: code_version(project, stage) for stage in STAGES},
    }
    record = history.record_of(board, cost, facts)
    path = history.keep(project.leaderboards, record, run.published / history.PAGE, Inputs(project.build / "finetune"))
    run.tracking.note(artifacts=[(path, "leaderboard")])
