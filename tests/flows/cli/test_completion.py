"""The shell completes commands, options, and the names of a project, by the protocol between shells and click."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from model.common.files import write_json
from tests.flows.clone import CLOZE


@pytest.fixture
def project(root: Path, tmp_path: Path) -> Path:
    """A project with a recorded run and a workspace."""
    shutil.copy(root / "dvc.yaml", tmp_path)
    (tmp_path / "params.yaml").write_text(
        "pretrain: {encoders: [{name: wide}]}\nfinetune: {encoders: [{name: wild}], tasks: [tasks/mood.yaml]}\n"
    )
    systems = [{"name": "wide", "kind": "pretrained"}, {"name": "bert-base", "kind": "quoted"}]
    write_json(tmp_path / "build" / "leaderboard" / "leaderboard.json", {"systems": systems})
    record = {"id": "1a2b3c4d", "systems": systems[:1]}
    write_json(tmp_path / ".cloze" / "leaderboard" / "0123" / "record.json", record)
    (tmp_path / ".cloze" / "workspaces" / "seeds-5e6f7a8b").mkdir(parents=True)
    return tmp_path


def complete(folder: Path, words: str) -> list[str]:
    """Return what bash offers for the last word."""
    request = {"_CLOZE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLOZE_")}
    done = subprocess.run(
        CLOZE, cwd=folder, env=environment | request, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("cloze pr", ["pretrain", "predict", "promote"]),
        ("cloze run --dry", ["--dry-run"]),
        ("cloze embed --encoder w", ["wide", "wild"]),
        ("cloze predict mo", ["mood"]),
        ("cloze predict squ", ["squad1", "squad2"]),
        ("cloze compare wi", ["wide", "wide@1a2b3c4d"]),
        ("cloze compare bert", []),
        ("cloze export champ", ["champion"]),
        ("cloze board --forget ", ["1a2b3c4d"]),
        ("cloze logs --run s", ["seeds-5e6f7a8b"]),
    ],
)
def test_names_of_the_project(project: Path, words: str, expected: list[str]) -> None:
    assert complete(project, words) == expected


def test_nothing_is_offered_for_a_damaged_or_missing_project(project: Path, tmp_path_factory) -> None:
    (project / "params.yaml").write_text("pretrain: [")
    assert complete(project, "cloze embed --encoder ") == []
    assert complete(tmp_path_factory.mktemp("none"), "cloze embed --encoder ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_line_gives_the_script_of_the_shell(root: Path, shell: str) -> None:
    assert f"_CLOZE_COMPLETE={shell}_source cloze" in (root / "docs" / "command-line.md").read_text(encoding="utf-8")
    environment = {**os.environ, "_CLOZE_COMPLETE": f"{shell}_source"}
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("click asks bash for its version")
    done = subprocess.run(CLOZE, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert f"_CLOZE_COMPLETE={shell}_complete" in done.stdout


def test_completion_does_not_import_heavy_packages(project: Path) -> None:
    program = """
import sys
sys.argv = ["cloze"]
from flows.cli.main import cli
from flows.cli import completion
for names in (completion.encoders, completion.tasks, completion.systems, completion.runs):
    assert names(None, None, "")
print([name for name in ("torch", "numpy", "prefect", "mlflow", "dvc", "rich") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr
