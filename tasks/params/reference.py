"""Generator of docs/configuration.md: all parameters with type, default, limits and description.

`python -m tasks.params.reference` writes the page; a test checks that it is up to date.
"""

from __future__ import annotations

import enum
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
from pydantic_core import PydanticUndefined

from model.benchmarks.custom_task import CustomTask
from model.config.finetuning import FinetuneRecipe
from model.config.pretraining import PretrainRecipe
from tasks.params.root import Params

HEAD = """# Every parameter

Generated from the settings classes by `python -m tasks.params.reference`. Unknown keys raise an error that suggests
the nearest key.
"""


def render() -> str:
    lines = [HEAD]
    for name, section in Params.model_fields.items():
        lines += _section(name, section.annotation, section.description or "")
    lines += _section("pretrain.recipe", PretrainRecipe, "Pre-training of an encoder.")
    lines += _section("finetune.recipe", FinetuneRecipe, "Fine-tuning of an encoder.")
    lines += _section("data/tasks/NAME.yaml", CustomTask, "A custom task; docs/add-a-benchmark.md has examples.")
    return "\n".join(lines) + "\n"


def _section(path: str, annotation: Any, meaning: str) -> Iterator[str]:
    """Yield a table for a settings class, then the tables of the classes in its fields."""
    for settings in _settings_in(annotation):
        several = len(_settings_in(annotation)) > 1
        yield f"\n## {path}{f' ({settings.__name__})' if several else ''}\n"
        yield f"{_one_line(settings.__doc__) if several else meaning}\n"
        yield "| key | type | default | meaning |\n|---|---|---|---|"
        nested = []
        for name, field in settings.model_fields.items():
            if _settings_in(field.annotation):
                nested.append((f"{path}.{name}", field.annotation, field.description or ""))
            yield f"| `{field.alias or name}` | {_type(field)} | {_default(field)} | {_one_line(field.description)} |"
        for inner in nested:
            yield from _section(*inner)


def _settings_in(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    found = [one for part in typing.get_args(annotation) for one in _settings_in(part)]
    return list(dict.fromkeys(found))


def _type(field: Any) -> str:
    limits = [repr(limit).split("(", 1)[1].rstrip(")") for limit in field.metadata if "(" in repr(limit)]
    return _escape(f"{_name(field.annotation)}{', ' if limits else ''}{', '.join(limits)}")


def _name(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is type(None):
        return "null"
    if origin is typing.Literal:
        return " / ".join(str(part) for part in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_name(part) for part in parts)
    if origin is typing.Annotated:
        return _name(parts[0])
    if parts:
        return f"{_name(origin)} of {', '.join(_name(part) for part in parts if part is not Ellipsis)}"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " / ".join(str(member.value) for member in annotation)
    name = getattr(annotation, "__name__", str(annotation))
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true / false"}.get(name, name)


def _default(field: Any) -> str:
    if field.default_factory is not None or isinstance(field.default, pydantic.BaseModel):
        return "see below"
    if field.default is PydanticUndefined:
        return "required"
    return _escape(f"`{field.default}`") if field.default is not None else "null"


def _one_line(text: str | None) -> str:
    return _escape(" ".join((text or "").split()))


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    Path("docs/configuration.md").write_text(render(), encoding="utf-8")
    sys.exit(0)
