"""How numbers and recipes are written for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTHING = "–"


def score(value: float | None) -> str:
    """A score as the paper prints it: one decimal."""
    return NOTHING if value is None else f"{value:.1f}".replace("-", "−")


def signed(value: float | None) -> str:
    """A difference in points, always with its sign."""
    return NOTHING if value is None else f"{value:+.1f}".replace("-", "−")


def deviation(value: float | None) -> str:
    """A standard deviation, "" where one run has none."""
    return "" if value is None else f"±{value:.1f}"


def percent(fraction: float | None) -> str:
    """A fraction in per cent."""
    return NOTHING if fraction is None else f"{100 * fraction:.1f} %"


def count(value: float) -> str:
    """A large number in few letters: 1,500 → 1.5k, 42,600,000,000 → 42.6B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def learning_rate(value: float) -> str:
    """3e-5, as recipes write it."""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def recipe(values: Mapping[str, Any]) -> str:
    """The settings that recipes differ in, in one line."""
    parts = []
    if "learning_rate" in values:
        parts.append(f"rate {learning_rate(values['learning_rate'])}")
    for key, written in (("batch_size", "batch {}"), ("num_epochs", "{} epochs"), ("max_length", "length {}")):
        if values.get(key) is not None:
            parts.append(written.format(values[key]))
    if values.get("max_train_rows") is not None:
        parts.append(f"at most {values['max_train_rows']:,} rows")
    adapt = values.get("adapt") or {}
    way = adapt.get("kind", "full")
    if way != "full":
        rank = f" of rank {adapt['rank']}" if "rank" in adapt else ""
        parts.append({"lora": "LoRA", "features": "frozen features"}.get(way, way) + rank)
    return " · ".join(parts)


def recipe_in_full(values: Mapping[str, Any]) -> str:
    """Every setting of a recipe, for a tooltip."""
    return ", ".join(f"{key} {value}" for key, value in sorted(values.items()) if value is not None)


def listed(words: list[str]) -> str:
    """A list in a sentence: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"


PARTIAL = "◔"
"""Marks a cell that was trained or measured on a part of the data."""


def is_partial(cell: Mapping[str, Any]) -> bool:
    """Whether a cell's training or dev rows were cut. Results that do not tell how many there are say it by a limit."""
    recipe = cell["recipe"]
    for part in ("train", "dev"):
        whole = cell.get(f"num_all_{part}_rows")
        if whole is not None and cell[f"num_{part}_rows"] < whole:
            return True
        if whole is None and recipe.get(f"max_{part}_rows") is not None:
            return True
    return False


def coverage(cell: Mapping[str, Any]) -> str:
    """What of the data a cell saw, in words; "all rows" where nothing was cut."""
    parts = []
    for part, name in (("train", "training"), ("dev", "dev")):
        seen, whole = cell[f"num_{part}_rows"], cell.get(f"num_all_{part}_rows")
        if whole is not None and seen < whole:
            parts.append(f"{seen:,} of {whole:,} {name} rows")
        elif whole is None and cell["recipe"].get(f"max_{part}_rows") is not None:
            parts.append(f"{seen:,} {name} rows at most")
    return ", ".join(parts) or "all rows"


def p_value(p: float | None) -> str:
    """A p for people: never 0."""
    return NOTHING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def seconds(value: float | None) -> str:
    """A duration in its natural unit."""
    if value is None:
        return NOTHING
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h"


def energy(joules: float | None) -> str:
    """Energy in watt-hours, kWh or MWh."""
    if joules is None:
        return NOTHING
    hours = joules / 3600
    size, unit = next((one for one in ((1e6, "MWh"), (1e3, "kWh")) if hours >= 0.9995 * one[0]), (1, "Wh"))
    return f"{hours / size:.3g} {unit}"


def memory(num_bytes: float | None) -> str:
    """Memory in MiB or GiB."""
    if num_bytes is None:
        return NOTHING
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
