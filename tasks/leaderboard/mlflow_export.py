"""A system of the leaderboard as flat tags, parameters and metrics, so that MLflow's own compare view works on it."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping
from typing import Any

from tasks.leaderboard import formatting
from tasks.tracking.tracking import flatten

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")  # of a benchmark of one's own; what is left is a name for MLflow


def flat_tags(board: Mapping[str, Any], system: Mapping[str, Any]) -> dict[str, str]:
    """What runs are found and told apart by."""
    cells = system["cells"].values()
    tags = {
        "cloze.kind": "system",
        "cloze.stage": "leaderboard",
        "cloze.system": system["name"],
        "cloze.encoder": system["name"],
        "cloze.encoder_kind": system["kind"],
        "cloze.split": system["split"],
        "cloze.champion": "yes" if system["name"] == board["champion"] else "no",
        "cloze.system_digest": system["digest"],
        "cloze.coverage": "partial" if any(formatting.is_partial(cell) for cell in cells) else "whole",
        "cloze.num_benchmarks": str(len(system["scores"])),
        "cloze.num_degenerate": str(sum(cell["num_degenerate"] for cell in cells)),
    }
    comparisons = board["comparisons"].get(system["name"])
    if comparisons:
        verdicts = [record["verdict"] for record in comparisons.values()]
        counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts) if verdict != "none"]
        tags["cloze.against_champion"] = ", ".join(counts)
    return tags


def flat_params(system: Mapping[str, Any]) -> dict[str, str]:
    """Recipe, seeds and rows, a parameter each, so that runs whose benchmarks differ in other keys still compare.

    A parameter is the value of most benchmarks, then those that differ: `128; squad1 384, squad2 384`.
    """
    cells = system["cells"]
    params = {"encoder": system["name"], "kind": system["kind"], "split": system["split"]}
    recipes = {task: flatten(cell["recipe"]) for task, cell in cells.items()}
    for key in sorted({key for recipe in recipes.values() for key in recipe}):
        params[f"recipe.{key}"] = _with_exceptions({task: recipe.get(key, "None") for task, recipe in recipes.items()})
    params["seeds"] = _with_exceptions({task: " ".join(map(str, cell["seeds"])) for task, cell in cells.items()})
    params["rows"] = _with_exceptions({task: formatting.coverage(cell) for task, cell in cells.items()})
    return params


def _with_exceptions(values: Mapping[str, str]) -> str:
    """The most frequent of `values` (the first of equals), then the others with their names."""
    if not values:
        return ""
    most = collections.Counter(values.values()).most_common(1)[0][0]
    others = ", ".join(f"{name} {value}" for name, value in values.items() if value != most)
    return f"{most}; {others}" if others else most


def flat_metrics(
    board: Mapping[str, Any], system: Mapping[str, Any], cost: Mapping[str, Any] | None
) -> dict[str, float]:
    """`dev/mrpc/f1` is a mean over seeds; the headline metric also has `_std`, `_median` and `_best`.

    Beside them average, glue_average, `vs_champion/BENCHMARK` (points) and `spent/...` in seconds, joules and bytes.
    """
    found: dict[str, float | None] = {"average": system["average"], "glue_average": system["glue_average"]}
    for task, scores in system["scores"].items():
        start = f"{system['split']}/{_name(task)}"
        found |= {f"{start}/{metric}": cell["mean"] for metric, cell in scores.items()}
        metric = board["headline"][task]
        cell = scores[metric]
        found |= {f"{start}/{metric}_{part}": cell[part] for part in ("std", "median", "best")}
        found[f"{start}/{metric}_ensemble"] = (system["cells"][task]["ensemble"] or {}).get(metric)
    for task, record in board["comparisons"].get(system["name"], {}).items():
        found[f"vs_champion/{_name(task)}"] = record["difference"]
    if cost is not None:
        found |= {f"spent/{name}": value for name, value in cost["total"].items()}
        found |= {f"spent/seconds/{_name(task)}": one.get("seconds") for task, one in cost["tasks"].items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def _name(task: str) -> str:
    return _NOT_IN_NAMES.sub("_", task)
