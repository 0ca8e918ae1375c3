"""The main table as a page shows it: a row per system, a cell per benchmark with all that it can be asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.leaderboard import formatting
from tasks.leaderboard.charts import cell_tip

MODES = {
    "mean": "mean ± deviation",
    "median": "median of the seeds",
    "best": "best seed",
    "ensemble": "ensemble of the seeds",
    "runs": "number of seeds",
    "difference": "difference from the champion",
    "p": "p against the champion",
    "rows": "share of the training rows",
    "seconds": "seconds",
    "energy": "energy",
}
"""What a cell can show, as far as it is known."""
MARKS = {"ahead": "▲", "behind": "▼", "perhaps ahead": "△", "perhaps behind": "▽", "level": "≈"}
_WORDS = {
    "ahead": "ahead of the champion",
    "behind": "behind the champion",
    "perhaps ahead": "perhaps ahead of the champion: not after Holm’s correction",
    "perhaps behind": "perhaps behind the champion: not after Holm’s correction",
    "level": "not told apart from the champion",
    "untested": "untested against the champion (one seed each, no predictions)",
}


_NO_CELL: dict[str, Any] = {
    **dict.fromkeys(("empty", "best", "flag", "collapsed", "partial"), False),
    **dict.fromkeys(("side", "mark", "words"), ""),
}


def modes_of(board: Mapping[str, Any]) -> dict[str, str]:
    """The modes that this board has something to show in."""
    measured = [system for system in board["systems"] if system["kind"] != "quoted"]
    totals = [(system.get("cost") or {}).get("total", {}) for system in measured]
    lacking = {mode for mode, key in (("seconds", "seconds"), ("energy", "energy_joules")) if not _any(totals, key)}
    if not any(cell.get("ensemble") for system in measured for cell in system["cells"].values()):
        lacking.add("ensemble")
    if not board["comparisons"]:
        lacking |= {"difference", "p"}
    return {mode: title for mode, title in MODES.items() if mode not in lacking}


def _any(totals: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(key in total for total in totals)


def table_row(board: Mapping[str, Any], system: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the main table."""
    quoted = system["kind"] == "quoted"
    total = (system.get("cost") or {}).get("total", {})
    return {
        "system": system,
        "champion": not quoted and system["name"] == board["champion"],
        "num_scored": len(system["scores"]),
        "cells": [
            {"task": task, **_NO_CELL, **(_cell(board, system, task, metric) or {"empty": True})}
            for task, metric in board["headline"].items()
        ],
        "best_average": not quoted and _is_best(board, system, "average"),
        "best_glue": not quoted and _is_best(board, system, "glue_average"),
        "totals": {"seconds": total.get("seconds"), "energy": total.get("energy_joules")},
        "total_texts": {
            "seconds": formatting.seconds(total.get("seconds")),
            "energy": formatting.energy(total.get("energy_joules")),
        },
    }


def _is_best(board: Mapping[str, Any], system: Mapping[str, Any], key: str) -> bool:
    """Whether no measured system has a higher `key`, and another one has it at all."""
    values = [row[key] for row in board["systems"] if row["kind"] != "quoted" and row[key] is not None]
    return len(values) > 1 and system[key] == max(values)


def best_mean(board: Mapping[str, Any], task: str, metric: str) -> float | None:
    """The highest mean of a column among the cells that were measured on the champion's dev rows (all, where the
    champion has no score); None unless there are two."""
    measured = [system for system in board["systems"] if system["kind"] != "quoted" and task in system["scores"]]
    champion = next((system for system in measured if system["name"] == board["champion"]), None)
    if champion is not None:
        measured = [system for system in measured if same_rows(system["cells"][task], champion["cells"][task])]
    means = [system["scores"][task][metric]["mean"] for system in measured if metric in system["scores"][task]]
    return max(means) if len(means) > 1 else None


def same_rows(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two cells were measured on the same dev rows."""
    return (one["num_dev_rows"], one["dev_digest"]) == (other["num_dev_rows"], other["dev_digest"])


def _cell(board: Mapping[str, Any], system: Mapping[str, Any], task: str, metric: str) -> dict[str, Any] | None:
    cell = system["scores"].get(task, {}).get(metric)
    if cell is None:
        return None
    if system["kind"] == "quoted":
        text = {"modes": ["mean", "median", "best"], "text": formatting.score(cell["mean"]), "small": ""}
        values = dict.fromkeys(text["modes"], cell["mean"])
        return {"tip": cell_tip(system, task, metric), "shown": [text], "values": values}
    record = system["cells"][task]
    comparison = board["comparisons"].get(system["name"], {}).get(task, {})
    cost = (system.get("cost") or {}).get("tasks", {}).get(task, {})
    values = {
        **{mode: cell[mode] for mode in ("mean", "median", "best")},
        "ensemble": (record.get("ensemble") or {}).get(metric),
        "runs": cell["num_runs"],
        "difference": comparison.get("difference"),
        "p": comparison.get("p_corrected"),
        "rows": _share(record),
        "seconds": cost.get("seconds"),
        "energy": cost.get("energy_joules"),
    }
    reason = comparison.get("reason", "")
    texts = {
        "mean": (formatting.score(cell["mean"]), formatting.deviation(cell["std"])),
        "median": (formatting.score(cell["median"]), ""),
        "best": (formatting.score(cell["best"]), ""),
        "ensemble": (formatting.score(values["ensemble"]), ""),
        "runs": (
            str(cell["num_runs"]),
            f"of {len(record['seeds']) + record['num_degenerate']}" if _left_out(record) else "",
        ),
        "difference": (formatting.signed(values["difference"]), reason),
        "p": (formatting.p_value(values["p"]), reason),
        "rows": (formatting.percent(values["rows"]), f"{record['num_train_rows']:,}"),
        "seconds": (formatting.seconds(values["seconds"]), ""),
        "energy": (formatting.energy(values["energy"]), ""),
    }
    return {
        "tip": "; ".join([cell_tip(system, task, metric), *_more(board, record, metric, comparison, cost)]),
        "shown": [
            {"modes": [mode], "text": text, "small": small}
            for mode, (text, small) in texts.items()
            if mode in modes_of(board)
        ],
        "values": {mode: value for mode, value in values.items() if value is not None},
        "best": cell["mean"] == best_mean(board, task, metric)
        and not reason,  # the same number on other rows is no tie
        "flag": record["num_degenerate"],
        "collapsed": record["all_degenerate"],
        "partial": formatting.is_partial(record),
        "side": comparison.get("verdict", "").rpartition(" ")[2],
        "mark": "≠" if reason else MARKS.get(comparison.get("verdict", ""), ""),
        "words": f"not compared: {reason}" if reason else _WORDS.get(comparison.get("verdict", ""), ""),
    }


def _left_out(record: Mapping[str, Any]) -> bool:
    return bool(record["num_degenerate"]) and not record["all_degenerate"]


def _share(record: Mapping[str, Any]) -> float | None:
    """Which share of the training rows a cell saw; None where nobody tells how many there are."""
    whole = record.get("num_all_train_rows")
    if whole:
        return float(record["num_train_rows"] / whole)
    return None if formatting.is_partial(record) else 1.0


def _more(
    board: Mapping[str, Any],
    record: Mapping[str, Any],
    metric: str,
    comparison: Mapping[str, Any],
    cost: Mapping[str, Any],
) -> list[str]:
    """What a tooltip tells beyond the score."""
    parts = []
    if record.get("after"):
        parts.append(f"after {', '.join(record['after'])}")
    if record.get("ensemble"):
        parts.append(f"ensemble of the seeds {formatting.score(record['ensemble'].get(metric))}")
    if record.get("num_pruned"):
        parts.append(f"{record['num_pruned']} runs of given-up recipes")
    if comparison.get("reason"):
        parts.append(f"no difference taken: {comparison['reason']}")
    elif comparison:
        line = f"{formatting.signed(comparison['difference'])} against {board['champion']}"
        if comparison["low"] is not None:
            line += f" (rows: {formatting.signed(comparison['low'])} to {formatting.signed(comparison['high'])})"
        parts.append(
            f"{line}, p {formatting.p_value(comparison['p'])}, corrected {formatting.p_value(comparison['p_corrected'])}"  # noqa: E501
        )
    if cost.get("seconds") is not None:
        parts.append(f"{formatting.seconds(cost['seconds'])} in {cost['num_timed']} of {cost['num_jobs']} jobs")
    if cost.get("energy_joules") is not None:
        parts.append(formatting.energy(cost["energy_joules"]))
    if cost.get("peak_memory_bytes") is not None:
        parts.append(f"{formatting.memory(cost['peak_memory_bytes'])} at most")
    return parts


def against(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per system: on which benchmarks it is ahead of the champion, behind, level, or not compared and why."""
    rows = []
    for name, records in board["comparisons"].items():
        titles = {task: board["titles"][task] for task in records}
        by_verdict: dict[str, list[str]] = {}
        for task, record in records.items():
            told = (
                f"{titles[task]} {formatting.signed(record['difference'])}" if record["reason"] == "" else titles[task]
            )
            by_verdict.setdefault(record["verdict"], []).append(told)
        reasons: dict[str, list[str]] = {}
        for task, record in records.items():
            if record["reason"]:
                reasons.setdefault(record["reason"], []).append(titles[task])
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
