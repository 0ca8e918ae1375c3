"""The base of all configuration classes: frozen, typed, and strict about unknown keys."""

from __future__ import annotations

import difflib
from typing import Any, Self

import pydantic

from model.common.errors import UserError
from model.common.redaction import redacted


class Settings(pydantic.BaseModel):
    """A frozen group of settings. Unknown keys raise an error that suggests the nearest known key."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: Any, source: str) -> Self:
        """Validate `values` (from the file or document named `source`).

        Raises:
            UserError: the values are invalid; the message names the source, the key and the expected value.
        """
        try:
            return cls.model_validate(values)
        except pydantic.ValidationError as error:
            raise UserError(f"{source}: {explain(cls, error)}") from None


def explain(settings: type[pydantic.BaseModel], error: pydantic.ValidationError) -> str:
    """Format the first error in one line, with the nearest known key if a key is unknown."""
    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        known = _known_keys(settings, fault["loc"][:-1])
        nearest = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1, cutoff=0.4)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"known keys: {', '.join(sorted(known))}"
        return f"unknown key '{where}'; {hint}"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    given = redacted(repr(fault["input"]))
    return f"{where or 'document'}: {fault['msg']}, got {given[:77] + '...' if len(given) > 80 else given}{more}"


def _known_keys(settings: type[pydantic.BaseModel], path: tuple[int | str, ...]) -> list[str]:
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
