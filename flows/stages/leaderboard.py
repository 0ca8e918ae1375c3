"""The leaderboard stage: every measured and quoted score, ranked, as JSON, page and plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect.artifacts import create_table_artifact

from flows.cli.board import keep
from flows.stage import StageRun, stage_flow, stage_run
from model.common.files import read_json
from tasks.leaderboard.board import build_leaderboard
from tasks.leaderboard.mlflow_export import flat_metrics, flat_params, flat_tags
from tasks.leaderboard.run_costs import costs
from tasks.leaderboard.terminal import table_rows
from tasks.prefect_tasks import step


@stage_flow("leaderboard")
def leaderboard(allow_missing: bool = False) -> None:
    """Build the leaderboard of the last fan-out, and keep a record of it in the project's history."""
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
            champion=run.params.leaderboard.champion,
        )
        create_table_artifact(key="leaderboard", table=table_rows(board), description="Scores on dev, 0 to 100")
        own = [system for system in board["systems"] if system["kind"] != "quoted"]
        cost = costs(run.project.runs / "finetune", own)
        _track(run, board, cost)
        run.artifacts.append(("", "leaderboard"))
        run.when_published.append(lambda: keep(run.project, board, cost, run.tracking))


def _track(run: StageRun, board: Mapping[str, Any], cost: Mapping[str, Any]) -> None:
    """One MLflow run per system that has scores, and the averages with the pipeline's own run."""
    own = [system for system in board["systems"] if system["kind"] != "quoted" and system["scores"]]
    averages = {f"average/{system['name']}": system["average"] for system in own if system["average"] is not None}
    run.tracking.note(metrics=averages)
    for system in own:
        key = f"system-{system['digest']}"
        name = f"{system['name']} @{run.tracking.parent.key[:6]}"
        run.tracking.begin(key, name, flat_tags(board, system), flat_params(system), nested=False)
        run.tracking.end(key, "FINISHED", flat_metrics(board, system, cost.get(system["name"])))
