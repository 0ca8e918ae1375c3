"""A clone of the project with a cut-down sample world, as a person has it, and the commands run in it as processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from model.common.files import read_json
from tasks.project.environment import numba_cache
from tasks.project.project import Project
from tasks.project.template import create
from tests.conftest import ROOT

# What numba compiles and what matplotlib finds is this project's own, as for `make run` in it: 25 s for a new clone.
COMPILED = {
    "NUMBA_CACHE_DIR": str(numba_cache(Project(ROOT, ROOT))),
    "MPLCONFIGDIR": str(ROOT / ".cloze" / "matplotlib"),
}
PREFECT_API = "PREFECT_API_URL"
CLOZE = (sys.executable, "-P", "-c", "from flows.cli.main import main; main()")
DVC = (sys.executable, "-m", "dvc")
ONE_PROCESS = """
import contextlib, io, json, sys
from flows.cli.main import main
ended = []
for words in json.loads(sys.argv[1]):
    said, code, sys.argv[1:] = io.StringIO(), 0, words
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    ended.append((code, said.getvalue()))
print(json.dumps(ended))
"""


class Clone:
    """A project folder of its own: its environment names no other folder's state.

    `prefix` are words before each command, by which it runs on another host.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefix: tuple[str, ...] = ()
        ours = ("CLOZE_", "PREFECT_", "MLFLOW_", "DVC_", "PYTEST_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        tools = root / ".tools"
        tools.mkdir(exist_ok=True)
        cloze = '-P -c "from flows.cli.main import main; main()"'
        for name, program in {"cloze": cloze, "dvc": "-m dvc"}.items():  # as dvc.yaml and DVC's queue call them
            (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
            (tools / name).chmod(0o755)
        self.environment["PATH"] = f"{tools}:{self.environment.get('PATH', os.defpath)}"
        self.environment |= {"DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(root / ".cloze" / "dvc")}
        self.environment |= COMPILED

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command in the folder, in a session of its own."""
        log = (self.root / "test.log").open("a")
        options: dict[str, Any] = {"cwd": self.root, "env": self.environment, "text": True, "start_new_session": True}
        return subprocess.Popen(self._whole(command), stdout=log, stderr=log, **options)

    def run(self, *command: str, code: int = 0) -> str:
        """Run a command to its end; what it printed."""
        ended, said = self.ended(*command)
        assert ended == code, f"{' '.join(command)} ended with {ended}:\n{said}"
        return said

    def ended(self, *command: str) -> tuple[int, str]:
        """Run a command to its end; its exit code and what it printed."""
        done = subprocess.run(
            self._whole(command), cwd=self.root, env=self.environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def run_all(self, *commands: list[str]) -> list[tuple[int, str]]:
        """Run commands of `cloze` one after another in one process, which imports once; code and output of each."""
        found = self.run(sys.executable, "-P", "-c", ONE_PROCESS, json.dumps(commands)).splitlines()[-1]
        return [(code, said) for code, said in json.loads(found)]

    def params(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Edit params.yaml."""
        path = self.root / "params.yaml"
        content = yaml.safe_load(path.read_text())
        change(content)
        edited = path.with_suffix(".edited")
        edited.write_text(yaml.safe_dump(content))
        edited.replace(path)  # a running command may read it at any moment

    def board(self) -> dict[str, Any]:
        """leaderboard.json."""
        return read_json(self.root / "build" / "leaderboard" / "leaderboard.json")

    def job_times(self, stage: str) -> dict[str, int]:
        """When each job's result was written: a job that runs again shows."""
        runs = self.root / "build" / "runs" / stage
        return {path.parent.name: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}

    def wait_for(self, condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 240) -> None:
        """Wait until the running command has come so far."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert process.poll() is None, f"it ended before:\n{(self.root / 'test.log').read_text()[-3000:]}"
            assert time.monotonic() < deadline, "it did not come so far"
            time.sleep(0.05)

    def kill(self, process: subprocess.Popen[str], within_seconds: float = 5.0) -> None:
        """kill -9 of that one process; nothing that works in this folder is left after 5 s."""
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + within_seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not self.alive()

    def alive(self) -> list[str]:
        """Command lines of processes that work in this folder."""
        found = []
        for process in psutil.process_iter(["cwd", "cmdline", "status"]):
            if process.info["cwd"] == str(self.root) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.info["cmdline"] or []))
        return found

    def copy(self, target: Path) -> Clone:
        """The whole folder once more."""
        shutil.copytree(self.root, target, symlinks=True)
        clone = Clone(target)
        clone.environment |= {name: value for name, value in self.environment.items() if name == PREFECT_API}
        return clone

    def _whole(self, command: tuple[str, ...]) -> list[str]:
        tools = {"cloze": CLOZE, "dvc": DVC}
        return [*self.prefix, *tools.get(command[0], (command[0],)), *command[1:]]


def cut_down(content: dict[str, Any]) -> None:
    """The sample's parameters, for seconds."""
    content["tokenizer"]["vocab_size"] = 1500
    recipe = content["pretrain"]["recipe"]
    recipe["phases"] = [{"sequence_length": 32, "batch_size": 16, "num_steps": 60, "learning_rate": 1e-3}]
    recipe |= {"warmup_steps": 5, "checkpoint_every_steps": 10, "log_every_steps": 5, "validate_every_steps": 30}
    content["finetune"] |= {"grid": {}, "seeds": [1]}
    content["finetune"]["recipe"] |= {"num_epochs": 1, "learning_rate": 1e-3}


def new_clone(target: Path) -> Clone:
    """A project with the small world, pinned, and nothing built."""
    create(target)
    clone = Clone(target)
    clone.params(cut_down)
    with (target / ".gitignore").open("a") as file:
        file.write("/.tools/\n/test.log\n")
    clone.run("cloze", "sample", "--small")
    for command in (("config", "user.email", "t@example.org"), ("config", "user.name", "t")):
        clone.run("git", *command)
    clone.run("dvc", "add", "-q", "data")
    commit(clone)
    return clone


def commit(clone: Clone) -> None:
    """git commit of everything."""
    clone.run("git", "add", "-A")
    clone.run("git", "commit", "-q", "--allow-empty", "-m", "state")


def forget(clone: Clone, *stages: str) -> None:
    """As if these stages had never run: their outputs are gone, and DVC has nothing to bring back."""
    path = clone.root / "dvc.lock"
    lock = yaml.safe_load(path.read_text())
    for stage in stages:
        shutil.rmtree(clone.root / "build" / stage)
        del lock["stages"][stage]
    path.write_text(yaml.safe_dump(lock))
    shutil.rmtree(clone.root / ".dvc" / "cache" / "runs", ignore_errors=True)
