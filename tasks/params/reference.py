"""Generator of docs/configuration.md (all parameters with type, default, limits and description), and of the JSON
schemas with which editors complete and check params.yaml and custom tasks.

`python -m tasks.params.reference` writes the page and the JSON schemas; tests check that they are up to date.
"""

from __future__ import annotations

import collections.abc
import json
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import yaml
from pydantic_core import PydanticUndefined

from model.benchmarks.custom_task import CustomTask
from model.config.finetuning import FinetuneRecipe
from model.config.pretraining import PretrainRecipe
from tasks.params.root import Params

HEAD = """# Every parameter

Generated from the settings classes by `python -m tasks.params.reference`. Unknown keys raise an error that suggests
the nearest key.

An editor with a YAML language server (VS Code with the YAML extension, Neovim, Emacs, JetBrains) completes keys, shows
their descriptions and marks mistakes: the first line of params.yaml names the schema,
`# yaml-language-server: $schema=params/params.schema.json`. The first line of a custom task is
`# yaml-language-server: $schema=../../params/task.schema.json`. What depends on several settings or on files, only
`cloze run --dry-run` checks.
"""
# Settings class → its field that holds some settings of a recipe.
_RECIPES: dict[str, type[pydantic.BaseModel]] = {
    "PretrainParams": PretrainRecipe,
    "EncoderParams": PretrainRecipe,
    "FinetuneParams": FinetuneRecipe,
    "BenchmarkParams": FinetuneRecipe,
}
_LIMITS = {
    "ge": "at least {}",
    "gt": "more than {}",
    "le": "at most {}",
    "lt": "less than {}",
    "min_length": "at least {} long",
    "max_length": "at most {} long",
    "pattern": "like `{}`",
}


@dataclass
class _Table:
    """The table of one settings class."""

    title: str
    meaning: str
    settings: type[pydantic.BaseModel]
    depth: int

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9_ -]", "", self.title.lower()).replace(" ", "-")


def render() -> str:
    tables: list[_Table] = []
    for name, section in Params.model_fields.items():
        tables += _tables(name, section.annotation, section.description or "")
    tables += _tables("pretrain.recipe", PretrainRecipe, "Pre-training of an encoder.")
    tables += _tables("finetune.recipe", FinetuneRecipe, "Fine-tuning of an encoder.")
    tables += _tables("data/tasks/NAME.yaml", CustomTask, "A custom task; docs/add-a-benchmark.md has examples.")
    lines = [HEAD, *(f"{'  ' * table.depth}- [{table.title}](#{table.anchor})" for table in tables)]
    for table in tables:
        # The nearest table below it: a class can have several, in different sections.
        below = {one.settings: one.anchor for one in reversed(tables[tables.index(table) + 1 :])}
        lines += [
            f"\n## {table.title}\n",
            f"{table.meaning}\n",
            "| key | type | default | meaning |\n|---|---|---|---|",
        ]
        for name, field in table.settings.model_fields.items():
            cells = f"`{field.alias or name}`", _type(field, below), _default(field), _one_line(field.description)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _tables(path: str, annotation: Any, meaning: str, depth: int = 0) -> Iterator[_Table]:
    """Yield the table of a settings class, then those of the classes in its fields."""
    several = len(_settings_in(annotation)) > 1
    for settings in _settings_in(annotation):
        title = f"{path} ({_tag_of(settings)})" if several else path
        yield _Table(title, _one_line(settings.__doc__) if several else meaning, settings, depth)
        for key, field in settings.model_fields.items():
            yield from _tables(f"{path}.{key}", field.annotation, field.description or "", depth + 1)


def _settings_in(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    found = [one for part in typing.get_args(annotation) for one in _settings_in(part)]
    return list(dict.fromkeys(found))


def _tag_of(settings: type[pydantic.BaseModel]) -> str:
    """Return the value by which YAML chooses one of several classes; "settings" for a class that stands alone."""
    field = settings.model_fields.get("kind")
    return str(typing.get_args(field.annotation)[0]) if field else "settings"


def _type(field: Any, anchors: dict[type[pydantic.BaseModel], str]) -> str:
    """Describe the type of a field in words, with its limits; settings link to their table."""
    limits_of_parts = [
        limit
        for part in typing.get_args(field.annotation)  # of a number or null, the number's
        for info in getattr(part, "__metadata__", ())
        for limit in getattr(info, "metadata", ())
    ]
    found = [*field.metadata, *limits_of_parts]
    given = {name: getattr(limit, name) for limit in found for name in _LIMITS if hasattr(limit, name)}
    limits = [
        _LIMITS[name].format(f"{value:,}" if isinstance(value, int) else value)
        for name, value in given.items()
        if value is not None
    ]
    return _escape(", ".join([_name(field.annotation, anchors), *limits]))


def _name(annotation: Any, anchors: dict[type[pydantic.BaseModel], str], is_plural: bool = False) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)

    def names(some: Iterable[Any], is_plural: bool = False) -> list[str]:
        return list(dict.fromkeys(_name(part, anchors, is_plural) for part in some if part is not Ellipsis))

    if origin is typing.Annotated:
        return _name(parts[0], anchors, is_plural)
    if annotation is type(None):
        return "null"
    if origin is typing.Literal:
        return " / ".join(f"`{part}`" for part in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(names(parts, is_plural))
    if origin in (list, tuple):
        return f"list of {' and '.join(names(parts, is_plural=True))}"
    if origin in (dict, collections.abc.Mapping):
        return f"mapping from {_name(parts[0], anchors)} to {_name(parts[1], anchors)}"
    if _settings_in(annotation):
        tag = _tag_of(annotation)
        return f"[{tag}](#{anchors[annotation]})" if annotation in anchors else tag
    words = {str: ("text", "texts"), int: ("whole number", "whole numbers"), float: ("number", "numbers")}
    words |= {bool: ("`true` / `false`", "`true` / `false`"), Any: ("any value", "any values"), Path: ("path", "paths")}
    return words[annotation][is_plural]


def _default(field: Any) -> str:
    """Format the default as in YAML."""
    if field.default_factory is not None or isinstance(field.default, pydantic.BaseModel):
        return "see its table"
    if field.default is PydanticUndefined:
        return "required"
    plain = pydantic.TypeAdapter(Any).dump_python(field.default, mode="json")
    return _escape(f"`{json.dumps(plain, ensure_ascii=False)}`" if isinstance(plain, str) else _code(plain))


def _code(value: Any) -> str:
    return f"`{yaml.safe_dump(value, default_flow_style=True, width=1000).splitlines()[0]}`"


def _one_line(text: str | None) -> str:
    return _escape(" ".join((text or "").split()))


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def schemas() -> dict[str, str]:
    """Return the content of each schema file, by its name below params/."""
    return {"params.schema.json": _schema_text(_params_schema()), "task.schema.json": _schema_text(_task_schema())}


def _params_schema() -> dict[str, Any]:
    schema = Params.model_json_schema()
    definitions = schema["$defs"]
    for name, recipe in _RECIPES.items():
        _put_recipe(definitions[name]["properties"], recipe, definitions)
    return {**schema, "title": "params.yaml"}


def _task_schema() -> dict[str, Any]:
    schema = CustomTask.model_json_schema()
    _put_recipe(schema["properties"], FinetuneRecipe, schema.setdefault("$defs", {}))
    return {**schema, "title": "data/tasks/NAME.yaml"}


def _put_recipe(properties: dict[str, Any], recipe: type[pydantic.BaseModel], definitions: dict[str, Any]) -> None:
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


def _schema_text(schema: dict[str, Any]) -> str:
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**draft, **schema}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path("docs/configuration.md").write_text(render(), encoding="utf-8")
    for name, text in schemas().items():
        Path("params", name).write_text(text, encoding="utf-8")
    sys.exit(0)
