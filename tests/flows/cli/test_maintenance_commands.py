"""`cloze logs`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from model.common.files import write_json
from model.common.run_dir import RunDir
from tests.flows.clone import Clone


def job(root: Path, number: int, name: str) -> None:
    run_dir = RunDir(root / "build" / "runs" / "finetune" / f"job-{number}")
    write_json(run_dir.finetune_config, {"name": name})
    run_dir.log.write_text(f"log {number}\n")
    os.utime(run_dir.log, (1000 + number,) * 2)


def test_logs(root: Path, tmp_path: Path) -> None:
    workspace = tmp_path / ".cloze" / "workspaces" / "two-seeds-01234567"
    for folder in (tmp_path, workspace):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("dvc.yaml", "params.yaml"):
            shutil.copyfile(root / name, folder / name)
    for number, name in enumerate(("a/rte/seed=1", "a/rte/seed=11", "a/cola/seed=1")):
        job(tmp_path, number, name)
    job(workspace, 7, "b/rte/seed=2")
    questions = ["cola"], ["a/rte/seed=1"], ["rte"], ["mnli"], [], ["--run", "seeds"]
    in_workspace = [["--run", run, "rte"] for run in ("two-seeds", "01234567", "two-seeds-01234567")]
    answers = Clone(tmp_path).run_all(*(["logs", *words] for words in (*questions, *in_workspace)))
    one, whole_name, ambiguous, none, table, no_run, *of_workspace = answers
    assert one == (0, "log 2\n")
    assert whole_name == (0, "log 0\n"), "which is not ambiguous"
    assert ambiguous == (0, "2 jobs match 'rte'; this is the newest, a/rte/seed=11\nlog 1\n")
    assert none == (2, "cloze: no job matches 'mnli'; `cloze logs` lists all jobs\n")
    jobs = [line.split()[0] for line in table[1].splitlines()]
    assert jobs == ["job", "a/cola/seed=1", "a/rte/seed=11", "a/rte/seed=1"]
    assert no_run == (2, "cloze: no workspace of a run 'seeds'; available: two-seeds-01234567\n")
    assert of_workspace == [(0, "log 7\n")] * 3
