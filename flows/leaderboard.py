"""The leaderboard stage: every measured and quoted score, ranked, as JSON, page and plots."""

from __future__ import annotations

from prefect import flow
from prefect.artifacts import create_table_artifact

from flows.stage import stage_run
from model.files import read_json
from tasks.leaderboard.board import build_leaderboard
from tasks.leaderboard.terminal import table_rows
from tasks.steps import step


@flow(name="leaderboard")
def leaderboard(allow_missing: bool = False) -> None:
    """Build the leaderboard of the last fan-out."""
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
        )
        create_table_artifact(key="leaderboard", table=table_rows(board), description="Scores on dev, 0 to 100")
        own = [system for system in board["systems"] if system["kind"] != "quoted" and system["average"] is not None]
        run.tracking.note(metrics={f"average/{system['name']}": system["average"] for system in own})
        run.artifacts.append(("", "leaderboard"))
