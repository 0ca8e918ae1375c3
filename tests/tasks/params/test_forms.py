"""Only what a form changes differs from params.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.params.forms import checked_name, form_values, merge_changes, params_file
from tasks.params.root import StageParams
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml


@pytest.fixture
def project(root: Path, tmp_path: Path) -> Project:
    """A folder with the shipped parameters."""
    (tmp_path / "params.yaml").write_text((root / "params.yaml").read_text())
    return Project(tmp_path, tmp_path)


def test_an_unchanged_form_is_params_yaml(project: Project) -> None:
    assert params_file(project, StageParams.parse(form_values(project), "form"), "form") is None


def test_a_change_is_the_only_difference(project: Project) -> None:
    values = form_values(project)
    values["finetune"]["seeds"] = [1, 2]
    values["pretrain"]["encoders"][0]["name"] = "other"
    path = params_file(project, StageParams.parse(values, "form"), "form")
    assert path is not None
    written, before = read_yaml(path), read_yaml(project.params_path)
    assert written["finetune"]["seeds"] == [1, 2]
    assert written["pretrain"]["encoders"][0]["name"] == "other"
    written["finetune"]["seeds"] = [1]
    written["pretrain"]["encoders"][0]["name"] = "pretrained"
    assert written == before


def test_what_no_stage_depends_on_is_kept(project: Project) -> None:
    text = project.params_path.read_text()
    project.params_path.write_text(text + "promotion: {margin: 2}\nmirror: {url: s3://bucket/x}\n")
    values = form_values(project)
    assert "promotion" not in values
    assert params_file(project, StageParams.parse(values, "form"), "form") is None
    values["finetune"]["seeds"] = [1, 2]
    path = params_file(project, StageParams.parse(values, "form"), "form")
    assert path is not None and read_yaml(path)["promotion"] == {"margin": 2}


def test_a_default_that_is_changed_is_written() -> None:
    assert merge_changes({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 3}) == {"a": 1, "b": 3}
    assert merge_changes({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2}) == {"a": 1}
    assert merge_changes({"a": {"x": 1}}, {"a": {"x": 1, "y": 0}}, {"a": {"x": 2, "y": 0}}) == {"a": {"x": 2}}
    assert merge_changes([1, 2], [1, 2], [1]) == [1]


@pytest.mark.parametrize("name", ["../up", "", "A", "a/b", "-x", "x" * 60])
def test_a_name_is_a_file_s(name: str) -> None:
    with pytest.raises(UserError, match="lowercase letters"):
        checked_name(name)
