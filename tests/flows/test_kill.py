"""kill -9 in the middle: nothing is left running, finished work stays finished, the outcome is the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.flows.clone import Clone

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline")]


@pytest.fixture(scope="module")
def prepared(finished: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone of the same world that has its tokens, and nothing trained."""
    clone = finished.copy(tmp_path_factory.mktemp("prepared") / "clone")
    for trained in ("build/runs", "build/pretrain", "build/finetune", "build/leaderboard", ".cloze/mlflow"):
        shutil.rmtree(clone.root / trained)
    lock = yaml.safe_load((clone.root / "dvc.lock").read_text())
    for stage in ("pretrain", "finetune", "leaderboard"):
        del lock["stages"][stage]
    (clone.root / "dvc.lock").write_text(yaml.safe_dump(lock))
    shutil.rmtree(clone.root / ".dvc" / "cache" / "runs", ignore_errors=True)
    return clone


@pytest.mark.parametrize("door", [("cloze", "run"), ("dvc", "repro")])
def test_killed_in_pretraining_and_in_the_fan_out(
    finished: Clone, prepared: Clone, tmp_path: Path, door: tuple[str, str]
) -> None:
    clone = prepared.copy(tmp_path / "clone")
    runs = clone.root / "build" / "runs"

    process = clone.start(*door)
    clone.wait_for(lambda: any(runs.glob("pretrain/pretrained-*/checkpoints/step-*")), process)
    clone.kill(process)
    assert not clone.job_times("pretrain").get("pretrained")

    process = clone.start(*door)
    clone.wait_for(lambda: len(clone.job_times("finetune")) >= 4, process)
    clone.kill(process)
    log = next(runs.glob("pretrain/pretrained-*/log.txt")).read_text()
    assert log.count("step 5/60 ") == 1, "it went on from a checkpoint, all of which are later"
    before = clone.job_times("finetune")
    assert 4 <= len(before) < 26

    clone.run(*door)
    after = clone.job_times("finetune")
    assert len(after) == 26
    assert {name: after[name] for name in before} == before
    assert clone.board() == finished.board()  # a run that nobody killed gives the same to the last digit
    assert "up to date" in clone.run("dvc", "status")


def test_stopped_by_a_signal_and_continued(prepared: Clone, finished: Clone, tmp_path: Path) -> None:
    clone = prepared.copy(tmp_path / "clone")
    runs = clone.root / "build" / "runs"
    process = clone.start("cloze", "run")
    clone.wait_for(lambda: any(runs.glob("pretrain/pretrained-*/checkpoints/step-*")), process)
    process.terminate()
    assert process.wait(60) == 75
    assert not clone.alive()
    said = (clone.root / "test.log").read_text()
    assert "the same command goes on from here" in said
    assert "Traceback" not in said
    clone.run("cloze", "run")
    assert clone.board() == finished.board()


def test_stopped_in_a_workspace_of_its_own(prepared: Clone, tmp_path: Path) -> None:
    clone = prepared.copy(tmp_path / "clone")
    clone.run("git", "worktree", "prune")
    other = tmp_path / "other.yaml"
    other.write_text((clone.root / "params.yaml").read_text().replace("num_steps: 60", "num_steps: 2000"))
    process = clone.start("cloze", "run", "--params", str(other))
    begun = "*/build/runs/pretrain/pretrained-*/checkpoints/step-*"
    clone.wait_for(lambda: any((clone.root / ".cloze" / "workspaces").glob(begun)), process)
    process.terminate()  # reaches the outer process alone, which hands it on
    assert process.wait(60) == 75
    [workspace] = (clone.root / ".cloze" / "workspaces").iterdir()
    assert not Clone(workspace).alive()
