"""The main table of a page: a row per system, a cell per benchmark with every value that the page can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.leaderboard import formatting
from tasks.leaderboard.charts import cell_tip
from tasks.leaderboard.schema import (
    BoardModel,
    CellRecord,
    Cost,
    MeasuredSystem,
    QuotedSystem,
    ReferenceComparison,
    System,
)

MODES = {
    "mean": "mean ± deviation",
    "median": "median of the seeds",
    "best": "best seed",
    "ensemble": "ensemble of the seeds",
    "runs": "number of seeds",
    "difference": "difference from the reference",
    "p": "p-value versus the reference",
    "rows": "share of the training rows",
    "seconds": "seconds",
    "energy": "energy",
}
"""Values that a cell can show, if they are known."""
MARKS = {"ahead": "▲", "behind": "▼", "perhaps ahead": "△", "perhaps behind": "▽", "level": "≈"}
_LABELS = {
    "ahead": "ahead of the reference",
    "behind": "behind the reference",
    "perhaps ahead": "perhaps ahead of the reference: not after Holm’s correction",
    "perhaps behind": "perhaps behind the reference: not after Holm’s correction",
    "level": "not significantly different from the reference",
    "untested": "not tested against the reference (one seed each, no predictions)",
}
_EMPTY: dict[str, Any] = {
    **dict.fromkeys(("best", "flag", "collapsed", "partial"), False),
    **dict.fromkeys(("side", "mark", "label"), ""),
}


def modes_of(board: BoardModel) -> dict[str, str]:
    """The modes for which this board has values."""
    totals = [_total(system) for system in board.measured]
    lacking = {
        mode
        for mode, key in (("seconds", "seconds"), ("energy", "energy_joules"))
        if not any(key in total for total in totals)
    }
    if not any(cell.ensemble for system in board.measured for cell in system.cells.values()):
        lacking.add("ensemble")
    if not board.comparisons:
        lacking |= {"difference", "p"}
    return {mode: title for mode, title in MODES.items() if mode not in lacking}


def _total(system: MeasuredSystem) -> Cost:
    return system.cost.total if system.cost else {}


def table_row(board: BoardModel, system: MeasuredSystem | QuotedSystem) -> dict[str, Any]:
    """One row of the main table."""
    total = _total(system) if isinstance(system, MeasuredSystem) else {}
    cells = []
    for task, metric in board.headline.items():
        if system.score(task, metric) is None:
            cell: dict[str, Any] = {"empty": True}
        elif isinstance(system, QuotedSystem):
            cell = _quoted_cell(board, system, task, metric)
        else:
            cell = _measured_cell(board, system, task, metric)
        cells.append({"task": task, "empty": False, **_EMPTY, **cell})
    return {
        "system": system,
        "reference": system.name == board.reference,
        "num_scored": len(system.scores),
        "cells": cells,
        "best_average": _is_best(board, system, "average"),
        "best_glue": _is_best(board, system, "glue_average"),
        "totals": {"seconds": total.get("seconds"), "energy": total.get("energy_joules")},
        "total_texts": {
            "seconds": formatting.seconds(total.get("seconds")),
            "energy": formatting.energy(total.get("energy_joules")),
        },
    }


def _is_best(board: BoardModel, system: System, key: str) -> bool:
    """Check whether a measured system has the highest `key` of at least two."""
    values = [value for one in board.measured if (value := getattr(one, key)) is not None]
    return isinstance(system, MeasuredSystem) and len(values) > 1 and getattr(system, key) == max(values)


def best_mean(board: BoardModel, task: str, metric: str) -> float | None:
    """The highest mean of a column among the systems scored on the reference's dev rows (all, if the reference has no
    score); None unless there are two."""
    measured = [system for system in board.measured if task in system.scores]
    reference = next((system for system in measured if system.name == board.reference), None)
    if reference is not None:
        measured = [one for one in measured if one.cells[task].dev_rows == reference.cells[task].dev_rows]
    means = [score.mean for system in measured if (score := system.score(task, metric))]
    return max(means) if len(means) > 1 else None


def _quoted_cell(board: BoardModel, system: QuotedSystem, task: str, metric: str) -> dict[str, Any]:
    mean = system.scores[task][metric].mean
    shown = {"modes": ["mean", "median", "best"], "text": formatting.score(mean), "small": ""}
    values = dict.fromkeys(shown["modes"], mean)
    return {"tip": cell_tip(board, system, task, metric), "shown": [shown], "values": values}


def _measured_cell(board: BoardModel, system: MeasuredSystem, task: str, metric: str) -> dict[str, Any]:
    score, cell = system.scores[task][metric], system.cells[task]
    comparison = board.comparisons.get(system.name, {}).get(task)
    cost = system.cost.tasks.get(task, {}) if system.cost else {}
    values = {
        "mean": score.mean,
        "median": score.median,
        "best": score.best,
        "ensemble": (cell.ensemble or {}).get(metric),
        "runs": score.num_runs,
        "difference": comparison.difference if comparison else None,
        "p": comparison.p_corrected if comparison else None,
        "rows": _share(cell),
        "seconds": cost.get("seconds"),
        "energy": cost.get("energy_joules"),
    }
    reason = comparison.reason if comparison else ""
    verdict = comparison.verdict if comparison else ""
    left_out = cell.num_degenerate and not cell.all_degenerate
    texts = {
        "mean": (formatting.score(score.mean), formatting.deviation(score.std)),
        "median": (formatting.score(score.median), ""),
        "best": (formatting.score(score.best), ""),
        "ensemble": (formatting.score(values["ensemble"]), ""),
        "runs": (str(score.num_runs), f"of {len(cell.seeds) + cell.num_degenerate}" if left_out else ""),
        "difference": (formatting.signed(values["difference"]), reason),
        "p": (formatting.p_value(values["p"]), reason),
        "rows": (formatting.percent(values["rows"]), f"{cell.num_train_rows:,}"),
        "seconds": (formatting.seconds(values["seconds"]), ""),
        "energy": (formatting.energy(values["energy"]), ""),
    }
    modes = modes_of(board)
    return {
        "tip": "; ".join([cell_tip(board, system, task, metric), *_more(board, cell, metric, comparison, cost)]),
        "shown": [
            {"modes": [mode], "text": text, "small": small} for mode, (text, small) in texts.items() if mode in modes
        ],
        "values": {mode: value for mode, value in values.items() if value is not None},
        "best": score.mean == best_mean(board, task, metric) and not reason,  # an equal score on other rows is no tie
        "flag": cell.num_degenerate,
        "collapsed": cell.all_degenerate,
        "partial": formatting.is_partial(cell),
        "side": verdict.rpartition(" ")[2],
        "mark": "≠" if reason else MARKS.get(verdict, ""),
        "label": f"not compared: {reason}" if reason else _LABELS.get(verdict, ""),
    }


def _share(cell: CellRecord) -> float | None:
    """Share of the training rows that was used; None if the number of all rows is unknown."""
    if cell.num_all_train_rows:
        return cell.num_train_rows / cell.num_all_train_rows
    return None if formatting.is_partial(cell) else 1.0


def _more(
    board: BoardModel, cell: CellRecord, metric: str, comparison: ReferenceComparison | None, cost: Cost
) -> list[str]:
    """Facts of a tooltip beyond the score."""
    parts = []
    if cell.after:
        parts.append(f"after {', '.join(cell.after)}")
    if cell.ensemble:
        parts.append(f"ensemble of the seeds {formatting.score(cell.ensemble.get(metric))}")
    if cell.num_pruned:
        parts.append(f"{cell.num_pruned} runs of pruned recipes")
    if comparison and comparison.reason:
        parts.append(f"not compared: {comparison.reason}")
    elif comparison:
        line = f"{formatting.signed(comparison.difference)} versus {board.reference}"
        if comparison.low is not None:
            line += f" (rows: {formatting.signed(comparison.low)} to {formatting.signed(comparison.high)})"
        p, corrected = formatting.p_value(comparison.p), formatting.p_value(comparison.p_corrected)
        parts.append(f"{line}, p {p}, corrected {corrected}")
    if "seconds" in cost:
        parts.append(f"{formatting.seconds(cost['seconds'])} in {cost['num_timed']} of {cost['num_jobs']} jobs")
    if "energy_joules" in cost:
        parts.append(formatting.energy(cost["energy_joules"]))
    if "peak_memory_bytes" in cost:
        parts.append(f"{formatting.memory(cost['peak_memory_bytes'])} at most")
    return parts


def versus_reference(board: BoardModel) -> list[dict[str, Any]]:
    """A row per system: the benchmarks on which it is ahead of the reference, behind, level, or not compared."""
    rows = []
    for name, records in board.comparisons.items():
        by_verdict: dict[str, list[str]] = {}
        reasons: dict[str, list[str]] = {}
        for task, record in records.items():
            title = board.titles[task]
            if record.reason:
                reasons.setdefault(record.reason, []).append(title)
            else:
                by_verdict.setdefault(record.verdict, []).append(f"{title} {formatting.signed(record.difference)}")
        rows.append(
            {
                "name": name,
                "verdicts": {verdict: by_verdict.get(verdict, []) for verdict in MARKS},
                "untested": by_verdict.get("untested", []),
                "reasons": [f"{', '.join(tasks)} ({reason})" for reason, tasks in reasons.items()],
                "num_not_compared": sum(map(len, reasons.values())),
            }
        )
    return rows


def table_rows(board: BoardModel) -> list[dict[str, str]]:
    """The board as rows of text, for Prefect's table artifact."""
    rows = []
    systems: Sequence[System] = [*board.measured, *(system for system in board.quoted if system.prominent)]
    for system in systems:
        row = {"system": system.name, "kind": system.kind, "split": system.split}
        row["average"] = formatting.score(system.average) if isinstance(system, MeasuredSystem) else ""
        row["GLUE as Table 1"] = formatting.score(system.glue_average)
        for task, metric in board.headline.items():
            score = system.score(task, metric)
            text = f"{formatting.score(score.mean)} {formatting.deviation(score.std)}".strip() if score else ""
            row[board.titles[task]] = text
        rows.append(row)
    return rows
