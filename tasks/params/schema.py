"""JSON schemas of params.yaml and of custom tasks, with which editors complete and check these files.

`python -m tasks.params.reference` writes them into params/. They know types, limits and keys; what depends on several
settings or on files, only `cloze run --dry-run` checks.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from model.benchmarks.custom_task import CustomTask
from model.config.finetuning import FinetuneRecipe
from model.config.pretraining import PretrainRecipe
from tasks.params.root import Params

# Settings class → its field that holds some settings of a recipe.
_RECIPES: dict[str, type[BaseModel]] = {
    "PretrainParams": PretrainRecipe,
    "EncoderParams": PretrainRecipe,
    "FinetuneParams": FinetuneRecipe,
    "BenchmarkParams": FinetuneRecipe,
}


def schemas() -> dict[str, str]:
    """Return the content of each schema file, by its name below params/."""
    return {"params.schema.json": _text(_params()), "task.schema.json": _text(_task())}


def _params() -> dict[str, Any]:
    schema = Params.model_json_schema()
    definitions = schema["$defs"]
    for name, recipe in _RECIPES.items():
        _put_recipe(definitions[name]["properties"], recipe, definitions)
    return {**schema, "title": "params.yaml"}


def _task() -> dict[str, Any]:
    schema = CustomTask.model_json_schema()
    _put_recipe(schema["properties"], FinetuneRecipe, schema.setdefault("$defs", {}))
    return {**schema, "title": "data/tasks/NAME.yaml"}


def _put_recipe(properties: dict[str, Any], recipe: type[BaseModel], definitions: dict[str, Any]) -> None:
    """Describe the fields `recipe` and `grid`, which the settings classes leave open, by the keys of `recipe`."""
    schema = recipe.model_json_schema()
    definitions |= schema.pop("$defs", {})
    schema.pop("required", None)  # a recipe may leave out anything
    definitions[recipe.__name__] = schema
    if "recipe" in properties:
        properties["recipe"] = {
            "$ref": f"#/$defs/{recipe.__name__}",
            "description": properties["recipe"]["description"],
        }
    if "grid" in properties:
        lists = {name: {"type": "array", "items": one} for name, one in schema["properties"].items()}
        grid = {"type": "object", "properties": lists, "additionalProperties": False}
        kinds = properties["grid"]["anyOf"]
        properties["grid"]["anyOf"] = [grid if one.get("type") == "object" else one for one in kinds]


def _text(schema: dict[str, Any]) -> str:
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**draft, **schema}, indent=1, ensure_ascii=False) + "\n"
