"""Faults of the machine and of DVC's configuration: one line that names the place and the remedy, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from model.common.state_files import read_state, write_state
from tasks.project.template import create
from tests.flows.clone import CLOZE, Clone

pytestmark = [pytest.mark.slow, pytest.mark.disruption]

PLAN = ("run", "--dry-run")
READ_ONLY = 'mount --bind . . && mount -o remount,ro,bind . && cd "$PWD" && exec "$@"'
FULL = 'mount -t tmpfs -o size=1m none .cloze && { cat /dev/zero > .cloze/full 2> /dev/null; exec "$@"; }'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A new project without data."""
    folder = tmp_path_factory.mktemp("environment") / "project"
    create(folder)
    (folder / ".cloze").mkdir()
    return Clone(folder)


def said_of(project: Clone, command: tuple[str, ...], *before: str, code: int = 2) -> str:
    """The one line of a command that runs with words before it."""
    said = project.run(*before, *CLOZE, *command, code=code)
    assert len(said.splitlines()) == 1, said
    return said


def in_own_mounts(script: str) -> tuple[str, ...]:
    words = ("unshare", "--mount", "sh", "-c")
    if subprocess.run([*words, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    return (*words, script, "sh")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[core", "Invalid line"),
        (b"[cache]\n    type = teleport\n", "teleport"),
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b'[remote "x"]\n    nonsense = 1\n', "expected 'url'"),
        (b"[cache]\n    dir = /tmp/{user}/cache\n", "cache.dir '/tmp/{user}/cache' must not contain braces"),
    ],
)
def test_a_broken_configuration_of_dvc(project: Clone, content: bytes, reason: str) -> None:
    path = project.root / ".dvc" / "config"
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        said = said_of(project, PLAN)
        assert said.startswith("cloze: DVC's configuration (.dvc/config, .dvc/config.local): ") and reason in said
        [(code, said)] = project.run_all(["doctor", "--json"])
        assert code == 1 and reason in said and "params.yaml" in said, "doctor lists it among other checks"
    finally:
        path.write_bytes(before)


def test_parameters_that_are_not_utf8(project: Clone) -> None:
    path = project.root / "params.yaml"
    before = path.read_bytes()
    path.write_bytes(before.decode().encode("utf-16"))
    try:
        for command in (PLAN, ("run",), ("up",)):
            assert said_of(project, command).startswith("cloze: params.yaml: not UTF-8 text")
    finally:
        path.write_bytes(before)
    assert not (project.root / ".cloze" / "servers").exists(), "no server was started"


@pytest.mark.parametrize("command", [("run",), ("up",), ("gc", "--dry-run")])
def test_a_read_only_project(project: Clone, command: tuple[str, ...]) -> None:
    said = said_of(project, command, *in_own_mounts(READ_ONLY))
    assert "make the project writable" in said


@pytest.mark.parametrize("command", [("run",), PLAN, ("doctor",)])
def test_a_full_partition(project: Clone, command: tuple[str, ...]) -> None:
    assert "free some space" in said_of(project, command, *in_own_mounts(FULL))


def test_limits_and_a_missing_home(project: Clone) -> None:
    limited = ("sh", "-c", 'ulimit -f 8; exec "$@"', "sh")
    assert "a database in .cloze/ or .dvc/" in said_of(project, PLAN, *limited)
    plan = project.run("cloze", *PLAN, code=2)
    assert "Traceback" not in plan
    assert project.run("sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *CLOZE, *PLAN, code=2) == plan
    assert project.run("env", "-u", "HOME", *CLOZE, *PLAN, code=2) == plan
    assert "`ulimit -f`" in said_of(project, ("up",), *limited)


def test_a_finished_project_that_is_read_only(finished: Clone) -> None:
    read_only = in_own_mounts(READ_ONLY)
    assert finished.run(*read_only, *CLOZE, *PLAN).endswith("nothing would run\n")
    assert "all up to date" in finished.run(*read_only, *CLOZE, "doctor")
    assert "done" in finished.run(*read_only, *CLOZE, "logs")
    assert "no server is running" in finished.run(*read_only, *CLOZE, "status", code=1)
    assert "make the project writable" in said_of(finished, ("run",), *read_only)


def test_files_from_the_future(finished: Clone, tmp_path: Path) -> None:
    clone, later = finished.copy(tmp_path / "clone"), time.time() + 10 * 365 * 86_400
    for path in clone.root.glob("build/runs/*/*/status.json"):
        write_state(path, read_state(path) | {"state": "running", "time": later})
    for path in [*clone.root.glob("build/**/*"), *clone.root.glob(".cloze/leaderboard/**/*")]:
        os.utime(path, (later, later))
    commands = (["logs"], ["leaderboard"], ["run", "--dry-run"], ["gc", "--dry-run"], ["run"])
    for command, (code, said) in zip(commands, clone.run_all(*commands), strict=True):
        assert code == 0 and "Traceback" not in said, (command, said)
    assert clone.board() == finished.board()


def test_a_limit_of_the_size_of_files_in_mid_run(finished: Clone, prepared: Clone, tmp_path: Path) -> None:
    clone = prepared.copy(tmp_path / "clone")
    said = clone.run("sh", "-c", 'ulimit -f 10000; exec "$@"', "sh", *CLOZE, "run", code=2)
    assert "Traceback" not in said and "`ulimit -f`" in said.splitlines()[-1]
    clone.run("cloze", "run")
    assert clone.board() == finished.board()


def test_worker_processes_without_shared_memory() -> None:
    script = "from tasks.project.parallel import ordered_map; print(*ordered_map(abs, [-1, 2, -3, 4], 2))"
    words = in_own_mounts('mount -t tmpfs -o ro none /dev/shm && exec "$@"')
    done = subprocess.run([*words, sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1 2 3 4\n"
    assert done.stderr == "cloze: /dev/shm: Read-only file system; using one process instead of 2\n"


def test_a_deleted_current_directory(project: Clone) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    assert said_of(project, ("status",), "sh", "-c", script, "sh") == "cloze: the current directory was deleted\n"
