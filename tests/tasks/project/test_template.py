"""A project that `cloze init` creates, and `cloze upgrade` in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from model.common.errors import UserError
from tasks.project import stage_versions, template
from tasks.project.project import Project
from tasks.project.stage_versions import INSTALLED, VERSIONS, check_versions


def test_the_repository_records_its_own_versions(root: Path) -> None:
    recorded = yaml.safe_load((root / VERSIONS).read_text())
    assert recorded == {"cloze": stage_versions.installed_release(), **INSTALLED}, "run `cloze upgrade`"


def test_a_project_is_complete_and_overwrites_nothing(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert template.create(folder)
    assert (folder / "dvc.yaml").read_bytes() == (root / "dvc.yaml").read_bytes()
    assert (folder / "data").is_dir() and "# mine" in (folder / "README.md").read_text()
    tracked = subprocess.run(["git", "add", "-A", "-n"], cwd=folder, capture_output=True, text=True, check=True).stdout
    shipped = {*template.FILES, "README.md", VERSIONS, ".github/workflows/cloze.yml"} - {"params"}
    assert {f"add '{name}'" for name in shipped} <= set(tracked.splitlines())
    (folder / "params.yaml").write_text("mine: 1\n")
    with pytest.raises(UserError, match="would be overwritten"):
        template.create(folder)
    assert (folder / "params.yaml").read_text() == "mine: 1\n"


def test_a_git_repository_is_kept(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "notes.txt").write_text("kept")
    assert not template.create(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "kept"


def test_an_upgrade_names_what_changes(tmp_path: Path) -> None:
    template.create(tmp_path)
    project = Project(tmp_path, tmp_path)
    check_versions(project)
    text = (tmp_path / VERSIONS).read_text()
    (tmp_path / VERSIONS).write_text(text.replace(f"tokens: {INSTALLED['tokens']}", "tokens: 99"))
    graph = yaml.safe_load((tmp_path / "dvc.yaml").read_text())
    graph["stages"]["finetune"]["deps"].remove("data/glue")
    del graph["artifacts"]["encoders"]
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump(graph))
    (tmp_path / "constraints.txt").write_text("numpy==1\n")
    with pytest.raises(UserError, match="records version 99 of tokens, but .* run `cloze upgrade`$"):
        check_versions(project)
    found = template.upgrade(project)
    assert found.versions == {"tokens": (99, INSTALLED["tokens"])}
    assert found.missing == ["artifacts: encoders", "stages: finetune: deps: data/glue"]
    assert (tmp_path / VERSIONS).read_text() == text and "numpy==2" in (tmp_path / "constraints.txt").read_text()
    check_versions(project)
    assert template.upgrade(project).versions == {}
