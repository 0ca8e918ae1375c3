"""kill -9 in the middle: nothing is left running, finished work stays finished, the outcome is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.clone import Clone, commit, new_clone

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline")]


@pytest.fixture(scope="module")
def prepared(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone whose parameters differ from the finished one's, so that its training is its own."""
    clone = new_clone(root, tmp_path_factory.mktemp("prepared"))
    for stage in ("corpus", "tokenizer", "tokens"):
        clone.run("dvc", "repro", "-q", stage)
    commit(clone)
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
    assert "resum" in log.lower() or "goes on" in log.lower()
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
