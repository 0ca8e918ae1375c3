"""The benchmark table: the benchmarks of the BERT paper, one row of table.yaml each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

import yaml

from model.benchmarks.benchmark import Benchmark
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe

__all__ = ["BENCHMARKS", "Benchmark", "find", "in_order", "paper_recipe"]

_TABLE = yaml.safe_load(Path(__file__).with_name("table.yaml").read_text(encoding="utf-8"))

BENCHMARKS: dict[str, Benchmark] = {row["name"]: Benchmark(**row) for row in _TABLE["benchmarks"]}


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of benchmarks in table order, followed by custom tasks in alphabetical order."""
    known = {name: number for number, name in enumerate(BENCHMARKS)}
    return sorted(names, key=lambda name: (known.get(name, len(known)), name))


def find(name: str) -> Benchmark:
    """The benchmark called `name`.

    Raises:
        UserError: there is none; the message suggests the nearest name.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    nearest = difflib.get_close_matches(name, BENCHMARKS, n=1, cutoff=0.4)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(BENCHMARKS)}"
    raise UserError(f"unknown benchmark '{name}'; {hint}")


def paper_recipe(benchmark: Benchmark) -> FinetuneRecipe:
    """The recipe of the BERT paper for a benchmark."""
    return FinetuneRecipe.parse(dict(benchmark.paper), f"the table's row '{benchmark.name}'")
