"""Scores of the BERT paper (Tables 1 to 4, NER of Table 7), and its tables with our systems added.

Source: Devlin, Chang, Lee, Toutanova, arXiv:1810.04805v2 (assets/paper_scores.yaml). A system with scores on
both splits becomes two systems, because scores of different splits are not comparable: the plain name has the test
scores, "(dev)" the development scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tasks.leaderboard import formatting
from tasks.leaderboard.schema import MeasuredSystem, QuotedSystem, ScoreSummary
from tasks.project.yaml_files import read_yaml


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return read_yaml(Path(__file__).parent / "assets" / "paper_scores.yaml")


def glue_columns() -> list[tuple[str, str]]:
    """Benchmark and metric of the nine columns that Table 1 averages: MNLI-m and MNLI-mm separately, without WNLI."""
    columns = _tables()["Table 1"]["columns"]
    return [(task, metric) for _, _, task, *metrics in columns for metric in metrics if task != "glue"]


def quoted_systems(benchmarks: Sequence[str]) -> list[QuotedSystem]:
    """Return the paper's systems that have a score on at least one of `benchmarks`.

    `average` is the average of Table 1 (nine columns, without WNLI) if the paper reports it, else None. The paper
    reports single numbers, which are used as mean, median and best, without a deviation.
    """
    systems: dict[tuple[str, str], QuotedSystem] = {}
    for source, table in _tables().items():
        keys = [(split, task, metric) for _, split, task, *metrics in table["columns"] for metric in metrics]
        for name, values in table["rows"].items():
            num_runs = table.get("num_runs", {}).get(name)
            for (split, task, metric), value in zip(keys, values, strict=True):
                if value is not None and task in benchmarks:
                    system = systems.setdefault((name, split), _empty(name, split))
                    system.source[task] = source
                    system.scores.setdefault(task, {})[metric] = _score(value, num_runs)
    for system in systems.values():
        mnli = system.scores.get("mnli")
        if mnli:  # our headline, the mean of both, is not in the table
            mnli["accuracy"] = _score(round((mnli["accuracy_matched"].mean + mnli["accuracy_mismatched"].mean) / 2, 2))
    return sorted(systems.values(), key=lambda system: (not system.prominent, system.split == "dev"))


def _score(value: float, num_runs: int | None = None) -> ScoreSummary:
    return ScoreSummary(mean=value, std=None, median=value, best=value, num_runs=num_runs)


def _empty(name: str, split: str) -> QuotedSystem:
    table_1 = _tables()["Table 1"]["rows"]
    average = table_1[name][-1] if split == "test" and name in table_1 else None
    return QuotedSystem(
        name=name if split == "test" else f"{name} (dev)",
        paper_name=name,
        split=split,
        average=average,
        average_of=None if average is None else "Table 1: nine columns, WNLI left out",
        glue_average=average,
        prominent=name in table_1,
        source={},
        scores={},
    )


def paper_tables(systems: Sequence[MeasuredSystem]) -> list[dict[str, Any]]:
    """Build Tables 1 to 4 with the measured `systems`, each with number, title, columns, note and rows.

    A row has name, quoted, split and cells. Tables omit systems without a score.
    """
    return [_with_measured(table, systems) for table in _tables().values() if "title" in table]


def _with_measured(table: dict[str, Any], systems: Sequence[MeasuredSystem]) -> dict[str, Any]:
    """Add rows for `systems` to a table of the paper. If the table has one split, the rows name theirs."""
    columns = table["columns"]
    splits = {split for _, split, *_ in columns}
    rows = []
    for name, numbers in table["rows"].items():
        values = iter(numbers)
        cells = ["/".join(formatting.score(next(values)) for _ in metrics) for _, _, _, *metrics in columns]
        rows.append({"name": name, "split": "test" if len(splits) == 1 else "", "cells": cells, "quoted": True})
    for system in systems:
        cells = [
            _cell(system, task, metrics) if len(splits) == 1 or split == system.split else formatting.NOTHING
            for _, split, task, *metrics in columns
        ]
        if any(cell != formatting.NOTHING for cell in cells):
            split = system.split if len(splits) == 1 else ""
            rows.append({"name": system.name, "split": split, "cells": cells, "quoted": False})
    shown = {"number": table["number"], "title": table["title"], "note": table.get("note", "")}
    return {**shown, "columns": [title for title, *_ in columns], "rows": rows}


def _cell(system: MeasuredSystem, task: str, metrics: Sequence[str]) -> str:
    """Format the means of one or more metrics; a dash if all are missing."""
    if task == "glue":
        return formatting.score(system.glue_average)
    scores = [system.score(task, metric) for metric in metrics]
    if not any(scores):
        return formatting.NOTHING
    partial = formatting.PARTIAL if formatting.is_partial(system.cells[task]) else ""
    return "/".join(formatting.score(score.mean if score else None) for score in scores) + partial
