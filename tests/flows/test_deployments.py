"""Deployments: prefect.yaml is up to date, and every field of the form is documented."""

from __future__ import annotations

import pkgutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prefect.utilities.callables import parameter_schema

from flows.deployments import TABLE, automations, job_variables, next_retraining, prefect_yaml
from model.common.errors import UserError
from tasks.params.forms import base_files, form_values
from tasks.project.project import Project
from tasks.project.yaml_files import read_yaml


def test_prefect_yaml_is_as_written(root: Path) -> None:
    assert read_yaml(root / "prefect.yaml") == prefect_yaml(), "run `python -m flows.deployments`"


@pytest.mark.parametrize("one", TABLE, ids=lambda one: one.flow)
def test_every_entrypoint_is_its_flow(one: Any) -> None:
    function = pkgutil.resolve_name(one.entrypoint)
    assert function.name == one.flow
    for name, parameter in parameter_schema(function.fn).properties.items():
        assert parameter.get("description"), f"{one.flow}: {name} is not documented"


def _undocumented(schema: dict[str, Any]) -> list[str]:
    found = []
    for model, definition in schema["definitions"].items():
        for name, one in definition.get("properties", {}).items():
            named = schema["definitions"].get(str(one.get("$ref", "")).rpartition("/")[2], {})
            if not (one.get("description") or named.get("description")) and "const" not in one:
                found.append(f"{model}.{name}")
    return found


def test_the_form_documents_every_parameter_and_accepts_its_defaults(root: Path) -> None:
    from flows.worker_flows import experiment

    schema = parameter_schema(experiment.fn).model_dump_for_openapi()
    assert "StageParams" in schema["definitions"]
    assert len(schema["definitions"]) > 10
    assert not _undocumented(schema)
    values = {"params": form_values(Project(root, root))}
    Draft202012Validator(schema).validate(values)
    Draft202012Validator(schema).validate({"overrides": ["finetune.seeds=[1, 2]", "pretrain.seed = 3"]})
    values["params"]["tokenizer"]["vocab_size"] = "many"
    assert list(Draft202012Validator(schema).iter_errors(values))
    assert list(Draft202012Validator(schema).iter_errors({"overrides": ["finetune.seeds"]}))


def test_the_tree_of_all_parameters_is_last_and_folded(root: Path) -> None:
    from flows.deployments import _runner_deployment

    [one] = [one for one in TABLE if one.flow == "experiment"]
    project = Project(root, root)
    deployment = _runner_deployment(project, one, {}, None)
    assert deployment.parameters == {}, "the form begins with None, which is folded"
    schema = deployment._parameter_openapi_schema
    fields = sorted(schema.properties, key=lambda name: schema.properties[name]["position"])
    assert fields[:3] == ["name", "base", "overrides"] and fields[-1] == "params"
    assert schema.properties["params"]["default"] is None
    assert schema.properties["base"]["enum"] == base_files(project)
    shown = {name: section["default"] for name, section in schema.definitions["StageParams"]["properties"].items()}
    assert shown == form_values(project), "unfolded, it shows params.yaml"


def test_further_runs_wait_and_further_retraining_is_skipped() -> None:
    others = {one.flow: (one.max_runs, one.collision_strategy) for one in TABLE}
    assert others["pipeline"] == (1, "ENQUEUE")
    assert others["retrain"] == (1, "CANCEL_NEW")


def test_the_next_retraining_is_that_of_the_schedule(root: Path) -> None:
    project, now = Project(root, root), datetime.now(UTC)
    moment = next_retraining(project, None)
    assert moment is not None and f"{moment:%a %H:%M %Z}" == "Sun 03:00 UTC"
    assert timedelta(0) < moment - now <= timedelta(days=7)
    assert next_retraining(project, "never") is None


def test_images_are_for_clusters(root: Path) -> None:
    project = Project(root, root)
    assert job_variables(project, "process")["working_dir"] == str(root)
    assert job_variables(project, "kubernetes", "cloze:1")["image"] == "cloze:1"
    with pytest.raises(UserError, match="needs --image"):
        job_variables(project, "kubernetes")
    with pytest.raises(UserError, match="--image needs"):
        job_variables(project, "process", "cloze:1")


def test_a_silent_run_is_marked_as_crashed() -> None:
    from prefect.events.actions import DoNothing

    made = {one.name: one for one in automations(DoNothing())}
    assert set(made) == {"cloze: failed", "cloze: stuck", "cloze: long", "cloze: late"}
    [action] = made["cloze: stuck"].actions
    assert action.type == "change-flow-run-state"
    assert action.state.value == "CRASHED"
