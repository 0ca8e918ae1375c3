"""Only what a form changes differs from params.yaml."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from model.common.errors import UserError
from tasks.params.finetune import FinetuneParams
from tasks.params.forms import (
    base_files,
    experiment_values,
    form_values,
    merge_changes,
    params_file,
    task_values,
    with_params,
)
from tasks.params.root import LeaderboardSettings, StageParams
from tasks.project.project import Project
from tasks.project.workspace import checked_name
from tasks.project.yaml_files import read_yaml, write_yaml


@pytest.fixture
def project(root: Path, tmp_path: Path) -> Project:
    """A folder with the shipped parameters."""
    (tmp_path / "params").mkdir()
    for name in ("params.yaml", "params/bert-base.yaml", "params/sample-seeds.yaml"):
        shutil.copyfile(root / name, tmp_path / name)
    return Project(tmp_path, tmp_path)


def test_an_unchanged_form_is_params_yaml(project: Project) -> None:
    tree = StageParams.parse(form_values(project), "form")
    assert experiment_values(project, "params.yaml", [], tree) == read_yaml(project.params_path)
    assert params_file(project, read_yaml(project.params_path), "form") is None


def test_a_change_is_the_only_difference(project: Project) -> None:
    values = form_values(project)
    values["finetune"]["seeds"] = [1, 2]
    values["pretrain"]["encoders"][0]["name"] = "other"
    path = params_file(project, with_params(project, StageParams.parse(values, "form")), "form")
    assert path is not None
    written, before = read_yaml(path), read_yaml(project.params_path)
    assert written["finetune"]["seeds"] == [1, 2]
    assert written["pretrain"]["encoders"][0]["name"] == "other"
    written["finetune"]["seeds"] = [1]
    written["pretrain"]["encoders"][0]["name"] = "pretrained"
    assert written == before


def test_what_no_stage_depends_on_is_kept(project: Project) -> None:
    others = {"promotion": {"margin": 2}, "mirror": {"url": "s3://bucket/x"}}
    write_yaml(project.params_path, read_yaml(project.params_path) | others)
    values = form_values(project)
    assert "promotion" not in values
    assert with_params(project, StageParams.parse(values, "form")) == read_yaml(project.params_path)
    values["finetune"]["seeds"] = [1, 2]
    path = params_file(project, with_params(project, StageParams.parse(values, "form")), "form")
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


def changed(project: Project, *overrides: str, base: str = "params.yaml") -> dict[str, Any]:
    return experiment_values(project, base, overrides)


def test_overrides_change_a_base_file(project: Project) -> None:
    assert base_files(project) == ["params.yaml", "params/bert-base.yaml", "params/sample-seeds.yaml"]
    assert changed(project, base="params/bert-base.yaml") == read_yaml(project.root / "params" / "bert-base.yaml")
    expected = read_yaml(project.params_path)
    expected["finetune"]["seeds"] = [1, 2]
    expected["pretrain"]["recipe"]["warmup_steps"] = 3
    expected["pretrain"]["encoders"][1]["seed"] = 4
    expected["pretrain"]["recipe"]["phases"][0]["num_steps"] = 50
    expected["leaderboard"] = expected.get("leaderboard") or {}
    expected["leaderboard"]["notes"] = ["a = b"]
    overrides = (
        "finetune.seeds=[1, 2]",
        "pretrain.recipe.warmup_steps = 3",
        f"pretrain.encoders.{expected['pretrain']['encoders'][1]['name']}.seed=4",
        "pretrain.recipe.phases.0.num_steps=50",
        "leaderboard.notes=[a = b]",
    )
    assert changed(project, *overrides) == expected


def test_a_key_may_contain_dots(project: Project) -> None:
    values = read_yaml(project.params_path)
    values["pretrain"]["encoders"][0]["name"] = "v1.5"
    write_yaml(project.params_path, values)
    assert changed(project, "pretrain.encoders.v1.5.seed=7")["pretrain"]["encoders"][0]["seed"] == 7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("finetune.seedz=[1]", "unknown key 'finetune.seedz'; did you mean 'seeds'?"),
        ("tokeniser.vocab_size=300", "unknown key 'tokeniser'; did you mean 'tokenizer'?"),
        ("pretrain.recipe.warmup_stepz=3", "unknown key 'pretrain.recipe.warmup_stepz'; did you mean 'warmup_steps'?"),
        ("pretrain.encoders.pretrain.seed=3", "no 'pretrain' in the list; did you mean 'pretrained'?"),
        ("tokenizer.vocab_size.x=3", "vocab_size is a value"),
        ("tokenizer.vocab_size=many", "tokenizer.vocab_size: Input should be a valid integer"),
        ("finetune.seeds", "expected a setting and its value"),
        ("finetune.seeds=[1", "expected ',' or ']'"),
    ],
)
def test_a_wrong_override_is_one_line(project: Project, line: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        changed(project, line)
    assert message in str(refused.value) and len(str(refused.value).splitlines()) == 1


def test_a_base_file_is_one_of_the_project(project: Project) -> None:
    with pytest.raises(UserError, match="did you mean 'params/bert-base.yaml'"):
        changed(project, base="params/bert-bas.yaml")
    with pytest.raises(UserError, match="no parameter file"):
        changed(project, base="../params.yaml")
    tree = StageParams.parse(form_values(project), "form")
    with pytest.raises(UserError, match="cannot be combined"):
        experiment_values(project, "params/bert-base.yaml", [], tree)


def test_one_task_keeps_the_settings_of_params_yaml(project: Project) -> None:
    before = read_yaml(project.params_path)
    found = task_values(project, "rte")
    assert {section: found[section] for section in before if section != "finetune"} == {
        section: before[section] for section in before if section != "finetune"
    }
    settings = FinetuneParams.parse(found["finetune"], "written")
    assert list(settings.with_tasks(project.data).benchmarks) == ["rte"]
    assert settings.grid_of("rte") == before["finetune"]["grid"], "not the rates of the paper"
    assert found["finetune"]["seeds"] == before["finetune"]["seeds"]
    assert settings.epochs_factor == before["finetune"]["epochs_factor"]

    other = FinetuneParams.parse(task_values(project, "rte", [4], {"learning_rate": 2e-5})["finetune"], "written")
    assert (other.seeds, other.grid_of("rte")) == ([4], {})
    assert [recipe.learning_rate for recipe in other.recipes("rte")] == [2e-5]
    with pytest.raises(UserError, match="does not list 'rtee'; did you mean 'rte'"):
        task_values(project, "rtee")
    with pytest.raises(UserError, match="did you mean 'num_epochs'"):
        task_values(project, "rte", recipe={"nun_epochs": 2})


def test_a_custom_task_runs_alone(project: Project) -> None:
    tasks = project.data / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "mood.csv").write_text("text,mood\n" + "fine,good\nawful,bad\n" * 20)
    (tasks / "mood.yaml").write_text(
        "head: classes\ntrain: mood.csv\ndev: mood.csv\ncolumns: {first: text, label: mood}\n"
    )
    values = read_yaml(project.params_path)
    values["finetune"]["tasks"] = ["tasks/mood.yaml"]
    write_yaml(project.params_path, values)
    for task in ("mood", "rte"):
        settings = FinetuneParams.parse(task_values(project, task)["finetune"], "written")
        assert list(settings.with_tasks(project.data).benchmarks) == [task]
        assert settings.grid_of(task) == values["finetune"]["grid"]


def test_the_former_name_of_the_reference_still_works(tmp_path: Path) -> None:
    for name in ("reference", "champion"):
        assert LeaderboardSettings.parse({name: "mine"}, "params.yaml").reference == "mine"
    with pytest.raises(UserError, match="unknown key 'referense'; did you mean 'reference'"):
        LeaderboardSettings.parse({"referense": "mine"}, "params.yaml")
