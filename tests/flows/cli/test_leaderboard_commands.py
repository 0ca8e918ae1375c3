"""`cloze score` and `cloze compare`: JSON or a table, and one line with exit code 2 for invalid input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.cli import leaderboard_commands
from tests.tasks.stats.test_compare import publish, runs


def cloze(*arguments: Any, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from flows.cli.main import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_scores_of_a_file_outside_a_project(tmp_path: Path) -> None:
    answers = [{"text": "cat", "answer_start": 0}]
    questions = [{"id": name, "question": "?", "answers": answers} for name in ("q", "r")]
    gold = {"version": "1.1", "data": [{"paragraphs": [{"context": "cat", "qas": questions}]}]}
    (tmp_path / "gold.json").write_text(json.dumps(gold))
    (tmp_path / "p.json").write_text(json.dumps({"q": "The cat!"}))
    done = cloze("score", "squad1", "gold.json", "p.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["official"] == {"exact_match": 50.0, "f1": 50.0}
    assert done.stderr == (
        "cloze: p.json: no prediction for 1 of 2 questions; each counts as 0, as in the official SQuAD script\n"
    )
    for arguments, message in (
        (("sqad1", "gold.json", "p.json"), "cloze: unknown benchmark 'sqad1'; did you mean 'squad1'?\n"),
        (("squad1", "none.json", "p.json"), "cloze: none.json: no such file; expected a gold file of squad1\n"),
        (("squad2", "gold.json", "p.json"), "cloze: p.json: no prediction for 1 of the 2 rows of"),
    ):
        refused = cloze("score", *arguments, folder=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert message in refused.stderr and refused.stderr.count("\n") == 1


def test_a_comparison_as_a_table_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finetune = tmp_path / "build" / "finetune"
    for encoder, accuracy, offset in (("good", 0.9, 0), ("bad", 0.4, 50)):
        publish(finetune, encoder, "sst2", runs(accuracy, [1, 2, 3], offset))
        publish(finetune, encoder, "wnli", runs(accuracy, [1], offset))
    project: Any = SimpleNamespace(build=tmp_path / "build", leaderboards=tmp_path / "leaderboards")
    monkeypatch.setattr(leaderboard_commands, "project_here", lambda: project)
    leaderboard_commands.compare.callback("good", "bad", (), as_json=False)
    table = capsys.readouterr().out
    [line] = [line for line in table.splitlines() if line.strip().startswith("sst2")]
    assert line.split()[1] == "accuracy" and line.split()[-1] == "A"
    assert "A on 2, B on 0" in table and "A  good (this project)" in table
    assert "one seed on wnli" in table
    leaderboard_commands.compare.callback("good", "bad", ("sst2",), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["a"] == {"name": "good", "origin": "this project"} and found["parameters"] is None
    [one] = found["benchmarks"]
    assert one["rows"]["low"] <= one["difference"] <= one["rows"]["high"]
