"""The base of all configuration classes: frozen, typed, and strict about unknown keys."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Self, get_args, get_origin

import pydantic
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from model.common.bounds import MOST_CHARACTERS
from model.common.errors import UserError
from model.common.redaction import redacted

_COLLECT = {"collect": True}
_MOST_MISTAKES = 20
_TYPE_NAME = re.compile(r"\[|^constrained-|^function-|^(str|int|float|bool)$")  # in the paths of errors in unions
Location = tuple[int | str, ...]
"""Keys and list indices that lead to a value."""
Placed = dict[str, tuple[Location, Any]]
"""Settings by key, each with the location in the file that it comes from."""


class SettingsError(UserError):
    """Mistakes in settings, each with the location of its setting in the file, and a line of text."""

    def __init__(self, *mistakes: tuple[Location, str]) -> None:
        super().__init__("\n".join(text for _, text in mistakes))
        self.mistakes = mistakes


@contextlib.contextmanager
def located(*location: int | str) -> Iterator[None]:
    """Add the location to UserErrors of the block, so that the message has the line of the setting."""
    try:
        yield
    except SettingsError as error:
        raise SettingsError(*(((*location, *inner), text) for inner, text in error.mistakes)) from None
    except UserError as error:
        raise SettingsError((location, str(error))) from None


def placed(location: Location, values: Mapping[str, Any]) -> Placed:
    """Return the settings of the group at `location`."""
    return {key: ((*location, key), value) for key, value in values.items()}


def _collect(
    values: Any, validate: pydantic.ValidatorFunctionWrapHandler, info: core_schema.ValidationInfo[Any]
) -> Any:
    if info.context is not _COLLECT:
        return validate(values)
    try:
        return validate(values)
    except UserError as error:
        mistakes = error.mistakes if isinstance(error, SettingsError) else ()
        raise PydanticCustomError("user_error", "{message}", {"message": str(error), "mistakes": mistakes}) from None


class Settings(pydantic.BaseModel):
    """A frozen group of settings. Unknown keys raise an error that suggests the nearest known key."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        str_max_length=MOST_CHARACTERS,
    )

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
            lines: dict[object, str] = {}
            for mistake in _explain(cls, error, lambda path: path):
                line = line_of(mistake.location) if line_of else None
                where = source if line is None else f"{source}:{line}"
                # A mistake in a part of a YAML file that is used twice (by an anchor) is one mistake.
                once = mistake.text if line is None else (line, mistake.location[-1:], mistake.fault)
                lines.setdefault(once, f"{where}: {mistake.text}")
            if error.error_count() > _MOST_MISTAKES:
                lines[None] = f"{source}: and more mistakes"
            raise UserError("\n".join(lines.values())) from None

    @classmethod
    def combine(cls, values: Placed, location: Location) -> Self:
        """Validate settings that come from several places of a file.

        Args:
            location: the place of mistakes that concern several settings.

        Raises:
            SettingsError: the values are invalid.
        """

        def place(path: Location) -> Location:
            return (*values[str(path[0])][0], *path[1:]) if path and path[0] in values else (*location, *path)

        try:
            return cls.model_validate({key: value for key, (_, value) in values.items()}, context=_COLLECT)
        except pydantic.ValidationError as error:
            raise SettingsError(*((found.location, found.text) for found in _explain(cls, error, place))) from None


class _Mistake(NamedTuple):
    location: Location
    text: str
    fault: str
    """The text without the location."""


def _explain(
    settings: type[pydantic.BaseModel], error: pydantic.ValidationError, place: Callable[[Location], Location]
) -> Iterator[_Mistake]:
    """Format every error in one line, with the nearest known key if a key is unknown.

    Args:
        place: returns the location in the file of a path in `settings`.
    """
    misspelled: set[Location] = set()
    for path, fault in _joined(error):
        location = place(path)
        added = len(location) - len(path)  # `place` may have changed the beginning
        tags = {index + added for index in _group_at(settings, path).tags}
        location = tuple(part for index, part in enumerate(location) if index not in tags)
        group = _group_at(settings, path[:-1])
        where = ".".join(str(part) for part in location)
        texts: list[tuple[Location, str]]
        if fault["type"] == "user_error":
            texts = list(fault["ctx"]["mistakes"]) or [(location, text) for text in fault["msg"].splitlines()]
        elif fault["type"] == "extra_forbidden":
            known = group.keys
            nearest = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.4)
            misspelled |= {(*path[:-1], name) for name in nearest}
            if location[-1] != path[-1]:  # one of several values of a grid: the key is that of the list
                location = location[:-1]
                where = ".".join(str(part) for part in location)
            if kinds := group.others.get(str(path[-1])):
                hint = f"only {' and '.join(sorted(kinds))} {'has' if len(kinds) == 1 else 'have'} it"
            else:
                hint = f"did you mean '{nearest[0]}'?" if nearest else f"known keys: {', '.join(known)}"
            texts = [(location, f"unknown key '{where}'; {hint}")]
        elif fault["type"] == "union_tag_invalid":
            key, tag, tags = (fault["ctx"][name].replace("'", "") for name in ("discriminator", "tag", "expected_tags"))
            texts = [(location, f"{where}.{key}: unknown '{tag}'; expected one of {tags}")]
        elif fault["type"] == "missing":
            texts = [(location, f"'{where}' is missing")] if path not in misspelled else []
        else:
            is_group = fault["type"] == "model_type"
            message = "expected keys and values" if is_group else fault["msg"].removeprefix("Value error, ")
            if not path or (isinstance(fault["input"], dict) and fault["type"] == "value_error"):
                texts = [(location, f"{where}{': ' if where else ''}{message}")]  # of a section
            else:
                given = redacted(repr(fault["input"]))
                short = given[:77] + "..." if len(given) > 80 else given
                texts = [(location, f"{where}: {message}, got {short}")]
        for at, text in texts:
            yield _Mistake(at, text, text if fault["type"] == "user_error" else f"{fault['type']} {fault['msg']}")


def _joined(error: pydantic.ValidationError) -> list[tuple[Location, Any]]:
    """Return path and content of each error, unknown keys first.

    A value that fits none of several types has an error for each of them: they become one, or only that which looked
    deepest into the value remains. A list without its invalid elements may also be too short, which is no mistake.
    """
    found: dict[tuple[object, ...], tuple[Location, Any]] = {}
    for fault in sorted(error.errors()[:_MOST_MISTAKES], key=lambda one: one["type"] != "extra_forbidden"):
        place = fault["loc"]
        own = len(place) - (fault["type"] == "extra_forbidden")  # where a key of the file is, whatever it looks like
        path = tuple(
            part
            for at, part in enumerate(place)
            if at == own or not (isinstance(part, str) and _TYPE_NAME.search(part))
        )
        key = (path, fault["type"]) if path == fault["loc"] else (path,)
        if key in found:
            message, more = found[key][1]["msg"], fault["msg"].removeprefix("Input should be ")
            found[key] = path, {**fault, "msg": message if more in message else f"{message}, or {more}"}
        else:
            found[key] = path, fault
    paths = {path for path, _ in found.values()}
    return [
        (path, fault)
        for path, fault in found.values()
        if not any(
            other != path and other[: len(path)] == path and (fault["loc"] != path or fault["type"] == "too_short")
            for other in paths
        )
    ]


class _Group(NamedTuple):
    """What the model at a path allows."""

    keys: list[str]
    others: dict[str, list[str]]
    """Key → the kinds that have it, of a group whose keys depend on its kind: those that this kind lacks."""
    tags: list[int]
    """Indices in the path at which pydantic names a kind, which is no key of the file."""


def _group_at(settings: type[pydantic.BaseModel], path: Location) -> _Group:
    """Describe the model at `path` below `settings`; unwraps unions and containers."""
    models, tags, others = [settings], list[int](), dict[str, list[str]]()
    for index, part in enumerate(path):
        nested: list[type[pydantic.BaseModel]] = []
        for model in models:
            if isinstance(part, str) and part in model.model_fields:
                nested += _models_in(model.model_fields[part].annotation)
        chosen = [] if nested else [model for model in models if part in _kinds_of(model)]
        if chosen and len(models) > 1:
            tags.append(index)
            others = {}
            for model in models:
                for key in model.model_fields.keys() - chosen[0].model_fields.keys():
                    others.setdefault(key, []).extend(_kinds_of(model))
            models = chosen
        else:  # list indices and dictionary keys are not fields
            models, others = nested or models, {} if nested else others
    return _Group(
        sorted({field.alias or name for model in models for name, field in model.model_fields.items()}), others, tags
    )


def _kinds_of(model: type[pydantic.BaseModel]) -> list[str]:
    """Return the values of a model's fields that have a type such as Literal["text"]."""
    literals = [
        get_args(field.annotation) for field in model.model_fields.values() if get_origin(field.annotation) is Literal
    ]
    return [values[0] for values in literals if len(values) == 1]


def _models_in(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]
