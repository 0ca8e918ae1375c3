"""The leaderboard stage: every measured and quoted score, ranked, as JSON, page and plots."""

from __future__ import annotations

from prefect import flow
from prefect.artifacts import create_table_artifact

from flows.stage import stage_run
from model.files import read_json
from tasks.leaderboard.board import build_leaderboard
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
        )
        create_table_artifact(key="leaderboard", table=table_rows(board), description="Scores on dev, 0 to 100")
        own = [system for system in board["systems"] if system["kind"] != "quoted" and system["average"] is not None]
        run.tracking.note(metrics={f"average/{system['name']}": system["average"] for system in own})
        run.artifacts.append(("", "leaderboard"))


def table_rows(board: dict) -> list[dict[str, str]]:
    """The leaderboard as flat rows: a system each, its headline scores as text."""
    rows = []
    for system in board["systems"]:
        row = {"system": system["name"], "kind": system["kind"], "average": _text(system["average"])}
        for task in board["tasks"]:
            cell = system["scores"].get(task, {}).get(board["headline"][task])
            row[task] = _text(cell["mean"] if cell else None)
        rows.append(row)
    return rows


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
