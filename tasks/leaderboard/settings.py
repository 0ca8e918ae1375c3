"""The parameters of a system of a recorded run, as one flat table, and the difference of two systems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from model.common.redaction import redacted
from tasks.leaderboard.schema import RunRecord
from tasks.params.root import StageParams
from tasks.tracking.tracking import flatten

Settings = dict[str, str]
"""Parameter as `a.b.c` → value"""
_NO_EFFECT = ("num_workers", "jobs_per_device", "memory_bytes", "num_parallel")  # on scores


def recorded_params(params: StageParams) -> dict[str, Any]:
    """Return the parameters of the stages before the leaderboard, with defaults and without secrets, for a record."""
    return _redacted(params.model_dump(mode="json", include=set(StageParams.model_fields) - {"leaderboard"}))


def _redacted(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _redacted(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_redacted(value) for value in values]
    return redacted(values) if isinstance(values, str) else values


def settings_of(record: RunRecord, system: str) -> Settings:
    """Return the parameters that determine the scores of one system of a record.

    Settings of its encoder override the common ones under `pretrain`, and settings of other encoders are left out. The
    digest of the data and the versions of the stages are included. Empty if the record has no parameters.
    """
    if not record.params:
        return {}
    pretrain, finetune = dict(record.params.get("pretrain", {})), dict(record.params.get("finetune", {}))
    pretrain |= _named(pretrain.pop("encoders", []), system, "recipe", pretrain.get("recipe", {}))
    if pretrain["recipe"].get("phases") == []:  # nothing is trained, so the rest of the recipe has no effect
        pretrain["recipe"] = {"phases": []}
    finetune |= _named(finetune.pop("encoders", []), system)
    finetune["epochs_factor"] = finetune.get("epochs_factor", {}).get(system, 1)
    overrides = finetune.pop("benchmarks", None) or {}
    finetune |= {"benchmarks": {name: one for name, one in overrides.items() if one}}
    finetune.pop("tasks", None)  # like the names of the benchmarks, not a property of the system
    values = {
        **{name: record.params.get(name, {}) for name in ("corpus", "tokenizer", "tokens")},
        "pretrain": {key: value for key, value in pretrain.items() if key not in _NO_EFFECT},
        "finetune": {key: value for key, value in finetune.items() if key not in _NO_EFFECT},
        "data": record.data[:8],
        "versions": {stage: version for stage, version in record.versions.items() if stage != "leaderboard"},
    }
    return flatten(_indexed(values))


def _named(
    encoders: list[dict[str, Any]], system: str, merged: str = "", common: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings of the encoder called `system`; its `merged` group overrides that of all encoders."""
    found = next((dict(one) for one in encoders if one["name"] == system), {})
    found.pop("name", None)
    if merged:
        found[merged] = {**(common or {}), **found.get(merged, {})}
    return {key: value for key, value in found.items() if value is not None}


def _indexed(values: Any) -> Any:
    """Convert lists of groups to groups: by name if they have one, otherwise by number."""
    if isinstance(values, list) and values and all(isinstance(value, dict) for value in values):
        return {
            str(value.get("name", number)): _indexed({key: one for key, one in value.items() if key != "name"})
            for number, value in enumerate(values)
        }
    if isinstance(values, Mapping):
        return {key: _indexed(value) for key, value in values.items() if value is not None}
    return values


def difference(first: Settings, second: Settings) -> dict[str, tuple[str, str]]:
    """Return the parameters that differ, with both values; "–" if a run does not have the parameter."""
    keys = [*first, *(key for key in second if key not in first)]
    pairs = {key: (first.get(key, "–"), second.get(key, "–")) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Shorten each key `section.a.b` to its section and last parts, as many as tell it from the other keys."""
    parts = {key: key.split(".") for key in keys}

    def shortened(key: str) -> str:
        section, *rest = parts[key]
        for length in range(1, len(rest)):
            end = rest[-length:]
            if not any(other[0] == section and other[-length:] == end for k, other in parts.items() if k != key):
                return f"{section}…{'.'.join(end)}"
        return key

    return {key: shortened(key) for key in parts}
