"""The base of all configuration classes: frozen, typed, and strict about unknown keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import pydantic
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from model.common.errors import UserError
from model.common.redaction import redacted

_COLLECT = {"collect": True}
_TYPE_NAME = re.compile(r"\[|^constrained-|^function-|^(str|int|float|bool)$")  # in the paths of errors in unions
Location = Sequence[int | str]
"""Keys and list indices that lead to a value."""


def _collect(
    values: Any, validate: pydantic.ValidatorFunctionWrapHandler, info: core_schema.ValidationInfo[Any]
) -> Any:
    if info.context is not _COLLECT:
        return validate(values)
    try:
        return validate(values)
    except UserError as error:
        raise PydanticCustomError("user_error", "{message}", {"message": str(error)}) from None


class Settings(pydantic.BaseModel):
    """A frozen group of settings. Unknown keys raise an error that suggests the nearest known key."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        """Let `parse` collect the UserErrors of validators, which would otherwise hide all other mistakes."""
        model: Any = {**handler.resolve_ref_schema(handler(source))}
        ref = model.pop("ref", None)  # so that JSON schemas, such as that of a form, refer to the class
        return core_schema.with_info_wrap_validator_function(_collect, model, ref=ref)

    @classmethod
    def parse(cls, values: Any, source: str, line_of: Callable[[Location], int | None] | None = None) -> Self:
        """Validate `values` (from the file or document named `source`).

        Args:
            line_of: returns the line of a setting in the file, for the message.

        Raises:
            UserError: the values are invalid; for every mistake, a line names the source, the key and the expected
                value.
        """
        try:
            return cls.model_validate(values, context=_COLLECT)
        except pydantic.ValidationError as error:
            raise UserError("\n".join(_explain(cls, error, source, line_of or (lambda _: None)))) from None


def _explain(
    settings: type[pydantic.BaseModel],
    error: pydantic.ValidationError,
    source: str,
    line_of: Callable[[Location], int | None],
) -> Iterator[str]:
    """Format every error in one line, with the nearest known key if a key is unknown."""
    misspelled: set[tuple[int | str, ...]] = set()
    seen: set[tuple[object, ...]] = set()
    for path, fault in _joined(error):
        where, line = ".".join(str(part) for part in path), line_of(path)
        prefix = f"{source}: " if line is None else f"{source}:{line}: "
        # A mistake in a part of a YAML file that is used twice (by an anchor) is one mistake.
        once = (line, fault["type"], path[-1:], fault["msg"])
        if line is not None and once in seen:
            continue
        seen.add(once)
        if fault["type"] == "user_error":
            yield from (f"{prefix}{text}" for text in fault["msg"].splitlines())
        elif fault["type"] == "extra_forbidden":
            known = _known_keys(settings, path[:-1])
            nearest = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.4)
            misspelled |= {(*path[:-1], name) for name in nearest}
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"known keys: {', '.join(sorted(known))}"
            yield f"{prefix}unknown key '{where}'; {hint}"
        elif fault["type"] == "union_tag_invalid":
            key, tag, tags = (fault["ctx"][name].replace("'", "") for name in ("discriminator", "tag", "expected_tags"))
            yield f"{prefix}{where}.{key}: unknown '{tag}'; expected one of {tags}"
        elif fault["type"] == "missing":
            if path not in misspelled:
                yield f"{prefix}'{where}' is missing"
        else:
            is_group = fault["type"] == "model_type"
            message = "expected keys and values" if is_group else fault["msg"].removeprefix("Value error, ")
            if not path or (isinstance(fault["input"], dict) and fault["type"] == "value_error"):
                yield f"{prefix}{where}{': ' if where else ''}{message}"  # of a section
            else:
                given = redacted(repr(fault["input"]))
                yield f"{prefix}{where}: {message}, got {given[:77] + '...' if len(given) > 80 else given}"


def _joined(error: pydantic.ValidationError) -> list[tuple[tuple[int | str, ...], Any]]:
    """Return path and content of each error, unknown keys first.

    A value that fits none of several types has an error for each of them: they become one, or only that which looked
    deepest into the value remains.
    """
    found: dict[tuple[object, ...], tuple[tuple[int | str, ...], Any]] = {}
    for fault in sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden"):
        path = tuple(part for part in fault["loc"] if not (isinstance(part, str) and _TYPE_NAME.search(part)))
        key = (path, fault["type"]) if path == fault["loc"] else (path,)
        if key in found:
            message = f"{found[key][1]['msg']}, or {fault['msg'].removeprefix('Input should be ')}"
            found[key] = path, {**fault, "msg": message}
        else:
            found[key] = path, fault
    paths = {path for path, _ in found.values()}
    return [
        (path, fault)
        for path, fault in found.values()
        if not any(other != path and other[: len(path)] == path and fault["loc"] != path for other in paths)
    ]


def _known_keys(settings: type[pydantic.BaseModel], path: Location) -> list[str]:
    """Return the keys of the model at `path` below `settings`; unwraps unions and containers."""
    models = [settings]
    for part in path:
        nested: list[type[pydantic.BaseModel]] = []
        for model in models:
            if isinstance(part, str) and part in model.model_fields:
                nested += _models_in(model.model_fields[part].annotation)
        models = nested or models  # list indices, dictionary keys and union tags are not fields
    return sorted({field.alias or name for model in models for name, field in model.model_fields.items()})


def _models_in(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]
