"""The JSON schemas that editors use."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tasks.params.reference import schemas
from tasks.params.root import load_params
from tests.flows.test_typical_mistakes import IN_PARAMS

VALIDATORS = {name: jsonschema.Draft202012Validator(json.loads(text)) for name, text in schemas().items()}
PARAMS = VALIDATORS["params.schema.json"]


def test_the_files_are_current(root: Path) -> None:
    for name, text in schemas().items():
        current = (root / "params" / name).read_text(encoding="utf-8")
        assert current == text, "run `python -m tasks.params.reference`"


def test_every_shipped_file_names_its_schema_and_matches(root: Path) -> None:
    paths = [root / "params.yaml", *(root / "params").glob("*.yaml")]
    assert len(paths) > 5
    for path in paths:
        [schema] = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", path.read_text(), re.MULTILINE)
        assert (path.parent / schema).resolve() == root / "params" / "params.schema.json"
        assert not list(PARAMS.iter_errors(yaml.safe_load(path.read_text())))


def test_every_custom_task_of_the_documentation_matches(root: Path) -> None:
    text = (root / "docs" / "add-a-benchmark.md").read_text(encoding="utf-8")
    tasks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    tasks = [task for task in tasks if isinstance(task, dict) and "head" in task]
    assert tasks
    for task in tasks:
        assert not list(VALIDATORS["task.schema.json"].iter_errors(task))


@pytest.mark.parametrize("number", range(len(IN_PARAMS)))
def test_typical_mistakes_of_keys_and_types_are_marked(number: int, root: Path) -> None:
    """The schema marks misspelled keys and wrong types.

    Names of benchmarks are open, since custom tasks have others; keys that only some kinds of sources have are left.
    """
    change, message = IN_PARAMS[number]
    params: dict[str, Any] = copy.deepcopy(yaml.safe_load((root / "params.yaml").read_text()))
    change(params)
    is_key_or_type = re.search(r"unknown key|did you mean '\w+'\?$|Input should be", message)
    if is_key_or_type and not re.search("only |'cola'", message):
        assert list(PARAMS.iter_errors(params)), message


def test_values_of_recipes_and_grids_are_checked(root: Path) -> None:
    params = yaml.safe_load((root / "params.yaml").read_text())
    load_params(root / "params.yaml")
    for path, value in (
        ("finetune.recipe.batch_size", "many"),
        ("finetune.recipe.batch_siz", 8),
        ("finetune.grid.learning_rate", ["fast"]),
        ("finetune.grid.learning_rates", [1e-3]),
        ("pretrain.recipe.warmup_steps", -1),
        ("pretrain.recipe.phases", 3),
        ("tokenizer.vocab_size", 3),
    ):
        changed = copy.deepcopy(params)
        *parents, last = path.split(".")
        place = changed
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = value
        assert list(PARAMS.iter_errors(changed)), path
