"""DVC's own commands on the pipeline: metrics, plots, and experiments in place and in a queue."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tasks.leaderboard.history import read_records
from tests.flows.clone import Clone, commit

pytestmark = [pytest.mark.slow, pytest.mark.disruption, pytest.mark.timeout(900)]


def test_experiments_of_dvc_are_runs_of_cloze(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    home = clone.root / ".cloze" / "leaderboard"
    [shown] = json.loads(clone.run("dvc", "metrics", "show", "--json").splitlines()[-1]).values()
    [metrics] = shown["data"].values()
    systems = {system["name"]: system for system in clone.board()["systems"] if system["kind"] != "quoted"}
    assert {name: row["average"] for name, row in metrics["data"].items()} == {
        name: system["average"] for name, system in systems.items()
    }
    before = metrics["data"]["pretrained"]["average"]

    said = clone.run("dvc", "exp", "run", "--name", "seeds", "-S", "finetune.seeds=[1,2]")
    assert "Ran experiment(s): seeds" in said
    assert clone.run("cloze", "run", "--dry-run").splitlines()[-1] == "nothing would run"
    after = clone.board()["systems"][0]
    rows = json.loads(clone.run("dvc", "metrics", "diff", "--json").splitlines()[-1])
    [changed] = rows.values()
    assert changed["pretrained.average"]["old"] == before and changed["pretrained.average"]["new"] == after["average"]
    plots = clone.run("dvc", "plots", "diff", "--out", "plots")
    page = (clone.root / "plots" / "index.html").read_text()
    assert "index.html" in plots and "score_of" in page

    for name in ("one", "two"):
        clone.run("dvc", "exp", "run", "--queue", "--name", name, "-S", f"leaderboard.notes=[{name}]")
    clone.run("dvc", "exp", "run", "--run-all")
    table = clone.run("dvc", "exp", "show", "--csv", "--no-pager")
    assert all(name in table for name in ("seeds", "one", "two"))
    # The queue works in temporary copies, which share the project's history: equal jobs are one record.
    [record, *others] = read_records(home)
    assert len(others) == 1 and {one.name for one in (record, *record.repeats)} >= {"one", "two"}
    assert clone.run("cloze", "run", "--dry-run").splitlines()[-1] == "nothing would run"
    runs = clone.root / ".cloze" / "mlflow" / "mlflow.db"
    with sqlite3.connect(runs) as database:
        names = [name for (name,) in database.execute("SELECT name FROM runs")]
    assert sum(name.startswith("seeds-") for name in names) == 1, "recorded once"
    assert sum(name.startswith(("one-", "two-")) for name in names) == 2

    commit(clone)
    clone.run("cloze", "run")
    assert len(read_records(home)) == 2
