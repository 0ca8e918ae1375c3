"""kill -9 of a run: no process is left, finished jobs are not repeated, and the results are the same."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import psutil
import pytest

from tasks.tracking.tracking import STAGES
from tests.flows.clone import Clone, forget
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.disruption]


def test_a_run_survives_stops_and_kills_of_cloze_and_dvc(finished: Clone, prepared: Clone, tmp_path: Path) -> None:
    """`cloze run` and `dvc repro` are killed in pre-training and in the fan-out; each resumes where the other ended."""
    clone = prepared.copy(tmp_path / "clone")
    runs = clone.root / "build" / "runs"

    def checkpoints() -> set[str]:
        return {path.name for path in runs.glob("pretrain/pretrained-*/checkpoints/step-*")}

    process = clone.start("cloze", "run")
    clone.wait_for(lambda: bool(checkpoints()), process)
    process.terminate()
    assert process.wait(60) == 75
    assert not clone.alive()
    said = (clone.root / "test.log").read_text()
    assert "rerun the same command to resume" in said
    assert "Traceback" not in said

    for door in (("dvc", "repro"), ("cloze", "run")):
        before = checkpoints()
        process = clone.start(*door)
        clone.wait_for(lambda before=before: bool(checkpoints() - before), process)  # type: ignore[misc]
        clone.kill(process)
        assert not clone.job_times("pretrain").get("pretrained")

    ended: dict[str, int] = {}
    for door in (("cloze", "run"), ("dvc", "repro")):
        process = clone.start(*door)
        clone.wait_for(lambda ended=ended: len(clone.job_times("finetune")) >= len(ended) + 4, process)  # type: ignore[misc]
        clone.kill(process)
        found = clone.job_times("finetune")
        assert {name: found[name] for name in ended} == ended
        ended = found
    log = next(runs.glob("pretrain/pretrained-*/log.txt")).read_text()
    assert log.count("step 5/60 ") == 1, "it went on from a checkpoint, all of which are later"
    assert 8 <= len(ended) < 26

    clone.run("cloze", "run")
    after = clone.job_times("finetune")
    assert len(after) == 26
    assert {name: after[name] for name in ended} == ended
    assert clone.board() == finished.board()  # a run that nobody killed gives the same to the last digit
    assert "up to date" in clone.run("dvc", "status")


def test_a_run_in_a_workspace_is_stopped(prepared: Clone, tmp_path: Path) -> None:
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


def test_the_server_of_a_run_dies_in_every_stage(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    shutil.rmtree(clone.root / "build" / "runs")
    forget(clone, *STAGES)
    log = clone.root / "test.log"
    process = clone.start("cloze", "run")

    def server() -> psutil.Process | None:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = " ".join(child.cmdline())
                if "request_guard:prefect_app" in words and "process_guard" not in words:
                    return child
        return None

    for number, stage in enumerate(STAGES, start=1):
        clone.wait_for(lambda begun=f"[{number}/6] {stage}: ": log.exists() and begun in log.read_text(), process)  # type: ignore[misc]
        clone.wait_for(lambda: server() is not None, process)
        found = server()
        assert found is not None
        found.kill()
    assert process.wait(120) == 0
    said = log.read_text()
    assert said.count("Prefect's server ended; starting it again") == len(STAGES)
    assert "Traceback" not in said
    wait_for(lambda: not clone.alive(), 5)
    assert clone.board() == finished.board()
    assert "nothing would run" in clone.run("cloze", "run", "--dry-run")
