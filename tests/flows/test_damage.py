"""Damaged and deleted files: the same command ends with the same leaderboard, and says what was wrong.

State files are those that Cloze writes for itself. Damaged outputs and data are refused by name: see test_mistakes.py.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.clone import PREFECT_API, Clone, forget

pytestmark = [pytest.mark.slow, pytest.mark.disruption]


def flipped(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "half": lambda content, _: content[: len(content) // 2],
    "empty": lambda content, _: b"",
    "zeros": lambda content, _: bytes(len(content)),
    "garbage": lambda content, rng: rng.randbytes(len(content)),
    "bit": flipped,
}


@pytest.fixture
def rng() -> random.Random:
    seed = time.time_ns() % 10**6
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(scope="module")
def killed(prepared: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone whose run was killed when some fine-tuning jobs had their results."""
    clone = prepared.copy(tmp_path_factory.mktemp("killed") / "clone")
    process = clone.start("cloze", "run")
    clone.wait_for(lambda: len(clone.job_times("finetune")) >= 12, process)
    clone.kill(process)
    return clone


@pytest.fixture(scope="module")
def killed_in_pretraining(prepared: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone whose run was killed when it had stored checkpoints."""
    clone = prepared.copy(tmp_path_factory.mktemp("killed_in_pretraining") / "clone")
    process = clone.start("cloze", "run")
    clone.wait_for(
        lambda: len(list(clone.root.glob("build/runs/pretrain/*/checkpoints/step-*/digests.json"))) > 1, process
    )
    clone.kill(process)
    return clone


@pytest.fixture(scope="module")
def trained(finished: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A finished clone without the outputs of the last two stages, whose jobs have their results."""
    clone = finished.copy(tmp_path_factory.mktemp("trained") / "clone")
    forget(clone, "finetune", "leaderboard")
    return clone


def damage(path: Path, how: str, rng: random.Random) -> None:
    content = DAMAGES[how](path.read_bytes(), rng)
    path.unlink()  # it may be a hard link
    path.write_bytes(content)


def kind_of(name: str) -> str:
    """A file's name without what tells files of one kind apart: encoders, tasks, digests and numbers."""
    for pattern, kind in (
        (r"^build/runs/(finetune|pretrain)/[^/]+/", r"build/runs/\1/*/"),
        (r"^build/finetune/[^/]+/[^/]+/", "build/finetune/*/*/"),
        (r"^build/pretrain/[^/]+/", "build/pretrain/*/"),
        (r"^\.cloze/mlflow/artifacts/.*", ".cloze/mlflow/artifacts/*"),
        (r"^\.dvc/cache/(files|runs)/.*?(\.dir)?$", r".dvc/cache/\1/*\2"),
        (r"[0-9a-f]{8,}|\d+", "*"),
    ):
        name = re.sub(pattern, kind, name)
    return name


def written_kinds(clone: Clone, *tops: str) -> dict[str, list[Path]]:
    """Every kind of file that a run writes there, with its files, none of them empty."""
    found: dict[str, list[Path]] = {}
    for top in tops:
        path = clone.root / top
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and not file.is_symlink() and file.stat().st_size:
                found.setdefault(kind_of(str(file.relative_to(clone.root))), []).append(file)
    return found


def damage_a_file_of_each_kind(clone: Clone, how: str, rng: random.Random) -> None:
    """Damage a state file of each kind, all but databases."""
    for files in written_kinds(clone, "build/runs", ".cloze/leaderboard", ".cloze/run.lock").values():
        damage(rng.choice(files), how, rng)


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("state", ["killed", "killed_in_pretraining"])
def test_a_killed_run_is_completed(
    request: pytest.FixtureRequest, finished: Clone, state: str, how: str, rng: random.Random, tmp_path: Path
) -> None:
    clone: Clone = request.getfixturevalue(state).copy(tmp_path / "clone")
    damage_a_file_of_each_kind(clone, how, rng)
    said = clone.run("cloze", "run")
    assert "Traceback" not in said
    assert "kept as result.json.damaged" in said
    assert clone.board() == finished.board()
    assert "damaged" not in clone.run("cloze", "run")


@pytest.mark.parametrize("how", DAMAGES)
def test_commands_in_a_finished_project_work(finished: Clone, how: str, rng: random.Random, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    damage_a_file_of_each_kind(clone, how, rng)
    commands = (["logs"], ["status"], ["leaderboard"], ["run", "--dry-run"], ["gc", "--dry-run"])
    for command, (code, said) in zip(commands, clone.run_all(*commands), strict=True):
        assert "Traceback" not in said and (code == 0) == (command != ["status"]), (command, said)
    assert "Traceback" not in clone.run("cloze", "run")
    assert clone.board() == finished.board()
    assert "damaged" not in clone.run("cloze", "run")


@pytest.mark.parametrize("how", ["half", "zeros"])
def test_damaged_databases_are_made_again(finished: Clone, how: str, rng: random.Random, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    forget(clone, "leaderboard")
    for path in (".cloze/mlflow/mlflow.db", ".cloze/prefect/prefect.db", ".dvc/tmp/rwlock"):
        damage(clone.root / path, how, rng)
    said = clone.run("cloze", "run")
    for name in ("mlflow.db", "prefect.db", "rwlock"):
        assert f"kept as {name}.damaged" in said
    assert "Traceback" not in said and clone.board() == finished.board()
    assert "damaged" not in clone.run("cloze", "run")


@pytest.mark.parametrize("how", ["half", "empty", "zeros", "garbage"])
def test_damaged_files_that_only_people_can_restore_are_named(
    finished: Clone, how: str, rng: random.Random, tmp_path: Path
) -> None:
    clone = finished.copy(tmp_path / "clone")
    forget(clone, "leaderboard")
    for name in ("dvc.yaml", "data.dvc", ".dvc/config", ".cloze/sample.json", "params.yaml"):
        if (how, name) in {("half", "params.yaml"), ("empty", ".dvc/config")}:
            continue  # still valid
        before = (clone.root / name).read_bytes()
        damage(clone.root / name, how, rng)
        said = clone.run("cloze", "run", code=2)
        [line] = [line for line in said.splitlines() if "checking what is out of date" not in line]
        assert name in line
        (clone.root / name).write_bytes(before)
    clone.run("cloze", "run")
    assert clone.board() == finished.board()


def fault_of(clone: Clone, finished: Clone, name: str, command: str) -> str:
    """Describe the fault of a command that ran after a file was damaged; empty without a fault."""
    code, said = clone.ended("cloze", command)
    if "Traceback" in said:
        return f"a traceback:\n{said}"
    if code:
        lines = [line for line in said.splitlines() if line.startswith("cloze: ")]
        return "" if code == 2 and len(lines) == 1 and name in lines[0] else f"ended with {code}:\n{said}"
    code, said = clone.ended("cloze", command)
    if code or "Traceback" in said or "damaged" in said:
        return f"the next one was not clean:\n{said}"
    compared = ["build/pretrain/pretrained/model.safetensors", "build/pretrain/scratch/model.safetensors"]
    if command == "run":
        compared += ["build/leaderboard/leaderboard.json"]
    different = [one for one in compared if (clone.root / one).read_bytes() != (finished.root / one).read_bytes()]
    return f"other results ({different}):\n{said}" if different else ""


@pytest.mark.exhaustive
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("turn", range(len(DAMAGES)))
@pytest.mark.parametrize("state", ["finished", "trained", "killed", "killed_in_pretraining"])
def test_each_kind_of_file_damaged_alone(
    request: pytest.FixtureRequest, served: Clone, state: str, turn: int, rng: random.Random, tmp_path: Path
) -> None:
    """In five turns, each kind of file is damaged in each way."""
    damaged: Clone = request.getfixturevalue(state)
    faults = []
    tops = ("build", ".cloze", ".dvc", "dvc.lock") if state == "finished" else ("build/runs",)  # by which it resumes
    for number, (kind, files) in enumerate(written_kinds(damaged, *tops).items()):
        how = list(DAMAGES)[(number + turn) % len(DAMAGES)]
        path = rng.choice(files).relative_to(damaged.root)
        clone = damaged.copy(tmp_path / "clone")
        if not kind.startswith(".cloze/prefect"):
            clone.environment[PREFECT_API] = served.environment[PREFECT_API]
        damage(clone.root / path, how, rng)
        command = "pretrain" if state == "killed_in_pretraining" else "run"
        fault = fault_of(clone, served, path.name, command)
        print(f"{state} {how} {kind}: {'FAULT' if fault else 'ok'}", flush=True)
        if fault:
            faults.append(f"--- {kind}: {path}: {fault}")
        shutil.rmtree(clone.root)
    assert not faults, "\n".join(faults)


def progress(root: Path) -> int:
    """Count the checkpoints and results of all jobs."""
    kinds = ("pretrain/*/checkpoints/step-*/digests.json", "*/*/result.json")
    return sum(len(list(root.glob(f"build/runs/{kind}"))) for kind in kinds)


REPETITIONS = [0, *(pytest.param(number, marks=pytest.mark.exhaustive) for number in range(1, 20))]


@pytest.mark.parametrize("repetition", REPETITIONS)
def test_kills_and_damages_in_turn(
    finished: Clone, prepared: Clone, repetition: int, rng: random.Random, tmp_path: Path
) -> None:
    """A run is killed three times, and two files are damaged each time; it ends as a run that nobody disturbed."""
    clone = prepared.copy(tmp_path / "clone")
    for _ in range(3):
        process = clone.start("cloze", "run")
        reached = progress(clone.root) + rng.randint(1, 5)
        clone.wait_for(lambda reached=reached: progress(clone.root) >= reached, process)  # type: ignore[misc]
        clone.kill(process)
        kinds = written_kinds(clone, "build/runs", ".cloze/run.lock")
        for kind in rng.sample(sorted(kinds), 2):
            path, how = rng.choice(kinds[kind]), rng.choice(list(DAMAGES))
            print(f"{how}: {path}")
            damage(path, how, rng)
    said = clone.run("cloze", "run")
    assert "Traceback" not in said and clone.board() == finished.board()
    assert "damaged" not in clone.run("cloze", "run")


def delete(path: Path, aside: Path) -> None:
    """Delete a file or a folder at once, while processes write there."""
    path.rename(aside)
    aside.unlink() if aside.is_file() else shutil.rmtree(aside)


def num_recorded(clone: Clone) -> int:
    """Count the finished runs in MLflow."""
    with contextlib.closing(sqlite3.connect(clone.root / ".cloze" / "mlflow" / "mlflow.db")) as database:
        [[num]] = database.execute("SELECT count(*) FROM runs WHERE status = 'FINISHED'")
    return int(num)


@pytest.mark.parametrize("repetition", REPETITIONS)
@pytest.mark.parametrize("what", ["build", ".cloze/run.lock", ".cloze/mlflow", ".cloze/prefect/prefect.db"])
def test_what_is_deleted_during_a_run(
    served: Clone, prepared: Clone, what: str, repetition: int, rng: random.Random, tmp_path: Path
) -> None:
    clone = prepared.copy(tmp_path / "clone")
    if what != ".cloze/prefect/prefect.db":
        clone.environment[PREFECT_API] = served.environment[PREFECT_API]
    process = clone.start("cloze", "run")
    reached, database = rng.randint(1, 20), clone.root / ".cloze" / "mlflow" / "mlflow.db"
    clone.wait_for(lambda: progress(clone.root) >= reached and database.exists(), process)
    delete(clone.root / what, tmp_path / "deleted")
    if what == ".cloze/run.lock":
        assert "another run uses this directory" in clone.run("cloze", "run", code=2)
    code, said = process.wait(300), (clone.root / "test.log").read_text()
    codes = {"build": (2,), ".cloze/prefect/prefect.db": (0, 2)}  # Prefect may never open another connection
    assert "Traceback" not in said and code in codes.get(what, (0,)), said
    if code == 2 or what == ".cloze/mlflow":
        assert f"{what.removeprefix('.cloze/')}" in said and "was deleted" in said
    said = clone.run("cloze", "run")
    assert clone.board() == served.board()
    assert num_recorded(clone) == num_recorded(served), said


@pytest.mark.parametrize("repetition", REPETITIONS)
def test_a_workspace_is_deleted_during_its_run(
    served: Clone, prepared: Clone, repetition: int, rng: random.Random, tmp_path: Path
) -> None:
    """`cloze gc --all` spares it; rm -rf is named, and the next run makes it again."""
    clone = prepared.copy(tmp_path / "clone")
    clone.environment[PREFECT_API] = served.environment[PREFECT_API]
    clone.run("git", "worktree", "prune")
    clone.run("cp", "params.yaml", "params/other.yaml")
    other = ("cloze", "run", "--params", "params/other.yaml")
    process = clone.start(*other)
    reached = rng.randint(1, 20)

    def workspace() -> Clone:
        [path] = (clone.root / ".cloze" / "workspaces").glob("*-*")
        return Clone(path)

    clone.wait_for(lambda: sum(map(progress, clone.root.glob(".cloze/workspaces/*-*"))) >= reached, process)
    code, said = clone.ended("cloze", "gc", "--all", "--older-than", "0")
    assert "Traceback" not in said and code in (0, 2), said
    delete(workspace().root, tmp_path / "deleted")
    code, said = process.wait(300), (clone.root / "test.log").read_text()
    assert "Traceback" not in said and code == 2 and "deleted" in said, said
    clone.run(*other)
    assert workspace().board() == served.board()
