"""Tags, parameters and metrics of a system, flattened so that MLflow's compare view works on them."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping

from tasks.leaderboard import formatting
from tasks.leaderboard.schema import Leaderboard, MeasuredSystem, SystemCost
from tasks.tracking.tracking import flatten

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")  # characters of a custom task's name that MLflow refuses


def flat_tags(board: Leaderboard, system: MeasuredSystem) -> dict[str, str]:
    """Tags that runs are searched and distinguished by."""
    cells = system.cells.values()
    tags = {
        "cloze.kind": "system",
        "cloze.stage": "leaderboard",
        "cloze.system": system.name,
        "cloze.encoder": system.name,
        "cloze.encoder_kind": system.kind,
        "cloze.split": system.split,
        "cloze.champion": "yes" if system.name == board.reference else "no",
        "cloze.system_digest": system.digest,
        "cloze.coverage": "partial" if any(formatting.is_partial(cell) for cell in cells) else "whole",
        "cloze.num_benchmarks": str(len(system.scores)),
        "cloze.num_degenerate": str(sum(cell.num_degenerate for cell in cells)),
    }
    comparisons = board.comparisons.get(system.name)
    if comparisons:
        verdicts = [record.verdict for record in comparisons.values()]
        counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts) if verdict != "none"]
        tags["cloze.against_champion"] = ", ".join(counts)
    return tags


def flat_params(system: MeasuredSystem) -> dict[str, str]:
    """Recipe, seeds and rows, each as one parameter.

    A parameter is the value of most benchmarks, then those that differ: `128; squad1 384, squad2 384`.
    """
    cells = system.cells
    params = {"encoder": system.name, "kind": system.kind, "split": system.split}
    recipes = {task: flatten(cell.recipe) for task, cell in cells.items()}
    for key in sorted({key for recipe in recipes.values() for key in recipe}):
        params[f"recipe.{key}"] = _with_exceptions({task: recipe.get(key, "None") for task, recipe in recipes.items()})
    params["seeds"] = _with_exceptions({task: " ".join(map(str, cell.seeds)) for task, cell in cells.items()})
    params["rows"] = _with_exceptions({task: formatting.coverage(cell) for task, cell in cells.items()})
    return params


def _with_exceptions(values: Mapping[str, str]) -> str:
    """The most frequent of `values` (the first of equal ones), then the others with their names."""
    if not values:
        return ""
    most = collections.Counter(values.values()).most_common(1)[0][0]
    others = ", ".join(f"{name} {value}" for name, value in values.items() if value != most)
    return f"{most}; {others}" if others else most


def flat_metrics(board: Leaderboard, system: MeasuredSystem, cost: SystemCost | None) -> dict[str, float]:
    """Mean over seeds of each metric, as `dev/mrpc/f1`; the headline metric also has `_std`, `_median` and `_best`.

    Other metrics are the averages, `vs_champion/BENCHMARK` (points) and `spent/...` in seconds, joules and bytes.
    """
    found: dict[str, float | None] = {"average": system.average, "glue_average": system.glue_average}
    for task, scores in system.scores.items():
        start = f"{system.split}/{_name(task)}"
        found |= {f"{start}/{metric}": score.mean for metric, score in scores.items()}
        metric = board.headline[task]
        cell = scores[metric]
        found |= {f"{start}/{metric}_{part}": getattr(cell, part) for part in ("std", "median", "best")}
        found[f"{start}/{metric}_ensemble"] = (system.cells[task].ensemble or {}).get(metric)
    for task, record in board.comparisons.get(system.name, {}).items():
        found[f"vs_champion/{_name(task)}"] = record.difference
    if cost is not None:
        found |= {f"spent/{name}": value for name, value in cost.total.items()}
        found |= {f"spent/seconds/{_name(task)}": one.get("seconds") for task, one in cost.tasks.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def _name(task: str) -> str:
    return _NOT_IN_NAMES.sub("_", task)
