"""`cloze board`: the leaderboard across all recorded runs of a project, and the record that each run leaves."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from model.common.files import digest_of, write_bytes, write_json
from tasks.leaderboard import history
from tasks.leaderboard.inputs import Inputs
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml


def keep(project: Project, board: Mapping[str, Any], cost: Mapping[str, Any], tracking: Any) -> None:
    """Leave the record of a published leaderboard in the history, and with its run in MLflow."""
    from flows.stage import pinned_data
    from tasks.dvc.stage_snapshot import code_version
    from tasks.project.workspace import git_commit
    from tasks.tracking.tracking import STAGES

    facts = {
        "git_commit": git_commit(project),
        "data": pinned_data(project),
        "params_digest": digest_of(read_yaml(project.params_path)),
        "pipeline": tracking.parent.key,
        "workspace": history.workspace_name(project.root, project.home),
        "host": socket.gethostname(),
        "versions": {stage: code_version(project, stage) for stage in STAGES},
    }
    record = history.record_of(board, cost, facts)
    page = project.build / "leaderboard" / history.PAGE
    path = history.leave(project.leaderboards, record, page, Inputs(project.build / "finetune"))
    tracking.note(artifacts=[(path, "leaderboard")])


def show(project: Project, champion: str, forgotten: Sequence[str], take_from_mlflow: bool) -> Path:
    """Write the page over all recorded runs, print it in short, and return its path.

    Raises:
        UserError: nothing is recorded, a record is damaged, or there is no such champion or run.
    """
    from tasks.leaderboard.combined_runs import combined_board
    from tasks.leaderboard.page import render_across
    from tasks.leaderboard.terminal import print_across
    from tasks.params.root import load_params
    from tasks.project.progress import say

    home = project.leaderboards
    champion = champion or load_params(project.params_path).leaderboard.champion
    if forgotten:
        history.forget(home, [_digest(home, name) for name in forgotten])
    if take_from_mlflow:
        from tasks.leaderboard.remote_runs import take_records

        say(f"MLflow has {take_records(project.tracking_uri, home)} runs that were not recorded here")
    records = history.read_records(home)
    if not records:
        raise UserError(f"{project.relative(home)}: no run is recorded yet; `cloze run` leaves a record when it ends")
    board = combined_board(records, lambda system, task: history.read_predictions(home, system, task), champion)
    write_json(home / "board.json", board)
    pages = {record.digest for record in records if (home / record.digest / history.PAGE).is_file()}
    write_bytes(home / "board.html", render_across(board, pages).encode())
    print_across(board)
    return home / "board.html"


def _digest(home: Path, name: str) -> str:
    """The one record whose name begins so."""
    found = [path.parent.name for path in sorted(home.glob("*/record.json")) if path.parent.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(path.parent.name[:6] for path in sorted(home.glob("*/record.json"))) or "none"
    raise UserError(
        f"no run '{name}' is recorded; there are {known}" if not found else f"'{name}' is more than one run"
    )
