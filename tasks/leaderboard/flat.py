"""A system of the leaderboard as flat tags, parameters and metrics, so that MLflow's own compare view works on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tasks.leaderboard import formats

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
        "cloze.coverage": "partial" if any(formats.is_partial(cell) for cell in cells) else "whole",
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
    """Recipes: `recipe.KEY` where all benchmarks agree, `recipe.KEY.BENCHMARK` where they do not; seeds and rows."""
    recipes = {task: cell["recipe"] for task, cell in system["cells"].items()}
    params = {"encoder": system["name"], "kind": system["kind"], "split": system["split"]}
    for key in sorted({key for recipe in recipes.values() for key in recipe}):
        values = {task: str(recipe.get(key)) for task, recipe in recipes.items()}
        if len(set(values.values())) == 1:
            params[f"recipe.{key}"] = next(iter(values.values()))
        else:
            params |= {f"recipe.{key}.{_name(task)}": value for task, value in values.items()}
    for task, cell in system["cells"].items():
        params[f"seeds.{_name(task)}"] = " ".join(str(seed) for seed in cell["seeds"])
        params[f"rows.{_name(task)}"] = formats.coverage(cell)
    return params


def flat_metrics(
    board: Mapping[str, Any], system: Mapping[str, Any], cost: Mapping[str, Any] | None
) -> dict[str, float]:
    """`dev/mrpc/f1` is a mean over seeds; the headline metric also has `_std`, `_median`, `_best` and `_runs`.

    Beside them average, glue_average, `against_champion/BENCHMARK` and `cost/...` in seconds and joules.
    """
    found: dict[str, float | None] = {"average": system["average"], "glue_average": system["glue_average"]}
    for task, scores in system["scores"].items():
        start = f"{system['split']}/{_name(task)}"
        found |= {f"{start}/{metric}": cell["mean"] for metric, cell in scores.items()}
        metric = board["headline"][task]
        cell = scores[metric]
        found |= {f"{start}/{metric}_{part}": cell[part] for part in ("std", "median", "best")}
        found[f"{start}/{metric}_runs"] = cell["num_runs"]
    for task, record in board["comparisons"].get(system["name"], {}).items():
        found[f"against_champion/{_name(task)}"] = record["difference"]
    if cost is not None:
        found |= {f"cost/{name}": value for name, value in cost["total"].items()}
        found |= {f"cost/seconds/{_name(task)}": one.get("seconds") for task, one in cost["tasks"].items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def _name(task: str) -> str:
    return _NOT_IN_NAMES.sub("_", task)
