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
    way = (values.get("adapt") or {}).get("kind", "full")
    if way != "full":
        parts.append({"lora": "LoRA", "features": "frozen features"}.get(way, way))
    return " · ".join(parts)


def recipe_in_full(values: Mapping[str, Any]) -> str:
    """Every setting of a recipe, for a tooltip."""
    return ", ".join(f"{key} {value}" for key, value in sorted(values.items()) if value is not None)


def listed(words: list[str]) -> str:
    """A list in a sentence: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"
