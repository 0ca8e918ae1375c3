"""A small pipeline of shell commands, run as `cloze run` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.dvc.graph import Graph
from tasks.project.project import Project
from tasks.project.stage_versions import VERSIONS, write_versions
from tasks.project.yaml_files import read_yaml

DVC = """
stages:
  two:
    cmd: mkdir -p build/two && cat build/one > build/two/out
    deps: [build/one]
    params: [{versions.yaml: [two]}]
    outs: [build/two]
  one:
    cmd: mkdir -p build && cat data/x params.yaml > build/one
    deps: [data/x]
    params: [a]
    outs: [build/one]
"""


def dvc(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "dvc", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def write_version(number: int) -> None:
    """Record a code version of the stage `two`."""
    write_versions(Path())
    with Path(VERSIONS).open("a") as file:
        file.write(f"two: {number}\n")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    subprocess.run(["git", "init", "-q"], check=True)
    dvc("init", "-q")
    Path("dvc.yaml").write_text(DVC)
    Path("params.yaml").write_text("a: 1\n")
    write_version(1)
    Path("data").mkdir()
    Path("data/x").write_text("x")
    dvc("add", "-q", "data")
    return Project(tmp_path, tmp_path)


@pytest.fixture
def persistent(project: Project) -> Project:
    """The pipeline whose last output is persistent."""
    Path("dvc.yaml").write_text(DVC.replace("outs: [build/two]", "outs: [{build/two: {persist: true}}]"))
    return project


def run_stale(project: Project) -> dict[str, bool]:
    """Bring the stages up to date: for each stale one, whether it was restored."""
    graph = Graph(project)
    restored: dict[str, bool] = {}
    for stage in graph.stages:
        status = graph.status(stage, after=frozenset(restored))
        if not status.reasons:
            continue
        restored[stage] = graph.restore(status)
        if not restored[stage]:
            command = read_yaml(project.root / "dvc.yaml")["stages"][stage]["cmd"]
            subprocess.run(command, shell=True, check=True, cwd=project.root)
            graph.record(stage)
    return restored
