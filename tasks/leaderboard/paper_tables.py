"""Tables 1 to 4 of the paper with its own columns, and our rows among its rows where they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.leaderboard import formatting
from tasks.leaderboard.paper_scores import TABLE_1, TABLE_2, TABLE_3, TABLE_4

_GLUE = (  # title, benchmark, metrics that stand in one column
    ("MNLI-(m/mm)", "mnli", ("accuracy_matched", "accuracy_mismatched")),
    ("QQP", "qqp", ("f1",)),
    ("QNLI", "qnli", ("accuracy",)),
    ("SST-2", "sst2", ("accuracy",)),
    ("CoLA", "cola", ("matthews",)),
    ("STS-B", "stsb", ("spearman",)),
    ("MRPC", "mrpc", ("f1",)),
    ("RTE", "rte", ("accuracy",)),
)


def paper_tables(systems: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The four tables; each has number, title, columns, and rows of {name, quoted, split, cells}, cells being texts.

    `systems` are the measured ones; one that a table has no score of is left out of it.
    """
    return [_glue(systems), *(_squad(systems, number) for number in (2, 3)), _swag(systems)]


def _glue(systems: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = []
    for name, values in TABLE_1.items():
        printed = [f"{values[0]:.1f}/{values[1]:.1f}", *(formatting.score(value) for value in values[2:])]
        rows.append(_row(name, "test", printed, quoted=True))
    for system in systems:
        cells = [_joined(system, task, metrics, "/") for _, task, metrics in _GLUE]
        rows.append(_row(system["name"], system["split"], [*cells, formatting.score(system["glue_average"])]))
    columns = [*(title for title, _, _ in _GLUE), "Average"]
    return _table(1, "GLUE", columns, rows, "F1 for QQP and MRPC, Spearman for STS-B, Matthews for CoLA; without WNLI.")


def _squad(systems: Sequence[Mapping[str, Any]], number: int) -> dict[str, Any]:
    title, task, table = {2: ("SQuAD v1.1", "squad1", TABLE_2), 3: ("SQuAD v2.0", "squad2", TABLE_3)}[number]
    rows = [
        _row(name, "", [_number(value) for pair in pairs for value in pair], quoted=True)
        for name, pairs in table.items()
    ]
    rows += [
        _row(system["name"], "", _placed(system, [_joined(system, task, (metric,)) for metric in ("exact", "f1")]))
        for system in systems
    ]
    return _table(number, title, ["Dev EM", "Dev F1", "Test EM", "Test F1"], rows)


def _swag(systems: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = [_row(name, "", [_number(value) for value in pair], quoted=True) for name, pair in TABLE_4.items()]
    rows += [_row(system["name"], "", _placed(system, [_joined(system, "swag", ("accuracy",))])) for system in systems]
    return _table(4, "SWAG", ["Dev", "Test"], rows)


def _placed(system: Mapping[str, Any], cells: list[str]) -> list[str]:
    """The cells of a split in a table that has both."""
    nothing = [formatting.NOTHING] * len(cells)
    return [*cells, *nothing] if system["split"] == "dev" else [*nothing, *cells]


def _joined(system: Mapping[str, Any], task: str, metrics: Sequence[str], sign: str = "") -> str:
    """The means of some metrics in one cell; nothing where all are missing."""
    scores = system["scores"].get(task, {})
    if not any(metric in scores for metric in metrics):
        return formatting.NOTHING
    partial = formatting.PARTIAL if formatting.is_partial(system["cells"][task]) else ""
    means = [scores[metric]["mean"] if metric in scores else None for metric in metrics]
    return sign.join(formatting.score(mean) for mean in means) + partial


def _number(value: float | None) -> str:
    return formatting.score(value)


def _row(name: str, split: str, cells: list[str], *, quoted: bool = False) -> dict[str, Any]:
    return {"name": name, "split": split, "cells": cells, "quoted": quoted}


def _table(number: int, title: str, columns: list[str], rows: list[dict[str, Any]], note: str = "") -> dict[str, Any]:
    """A table without our rows that have nothing to say in it."""
    told = [row for row in rows if row["quoted"] or any(cell != formatting.NOTHING for cell in row["cells"])]
    return {"number": number, "title": title, "columns": columns, "rows": told, "note": note}
