"""The differences between two sets of parameters, as short texts."""

from __future__ import annotations

import json
from typing import Any

from tasks.project.progress import shortened

UNSET = object()
"""A parameter that is not set, so that its default applies."""
_MAX_CHARACTERS = 40


def differences(before: Any, after: Any, path: str) -> list[str]:
    """List the parameters at and below `path` that differ, such as `finetune.seeds: [1] → [1, 2]`.

    Lists of groups are compared entry by entry: by name (encoders, sources), otherwise by number (phases).
    """
    if before == after:
        return []
    old, new = _named(before), _named(after)
    if old is not None and new is not None:
        keys = dict.fromkeys([*old, *new])
        return [text for key in keys for text in differences(old.get(key, UNSET), new.get(key, UNSET), f"{path}.{key}")]
    return [f"{path}: {_shown(before)} → {_shown(after)}"]


def _named(value: Any) -> dict[str, Any] | None:
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return {str(one.get("name", number)): one for number, one in enumerate(value)}
    return None


def _shown(value: Any) -> str:
    if value is UNSET:
        return "(default)"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return shortened(text, _MAX_CHARACTERS)
