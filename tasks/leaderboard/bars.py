"""The bar charts: one per benchmark and one per average, the paper's rows beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.leaderboard import formatting
from tasks.leaderboard.charts import Bar, bar_rows, cell_tip
from tasks.leaderboard.columns import metric_title

NUM_QUOTED = 5  # per chart; the table has all of them


def all_bars(
    board: Mapping[str, Any], styles: Mapping[str, str], majority: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The charts in the order of the page: averages that exist, then every benchmark."""
    averages = [
        _average(board, styles, "average", "Average", f"{len(board['tasks'])} benchmarks"),
        _average(board, styles, "glue_average", "GLUE", "average as Table 1"),
    ]
    return [
        *(chart for chart in averages if chart),
        *(_benchmark(board, task, styles, majority.get(task)) for task in board["tasks"]),
    ]


def _average(
    board: Mapping[str, Any], styles: Mapping[str, str], key: str, title: str, subtitle: str
) -> dict[str, Any] | None:
    """The chart of an average; None when no measured system has it. Quoted rows only have the GLUE average."""
    rows = [
        system
        for system in board["systems"]
        if system[key] is not None and (system["kind"] != "quoted" or key == "glue_average")
    ]
    if all(system["kind"] == "quoted" for system in rows):
        return None
    bars = [
        Bar(
            name=system["name"],
            kind=system["kind"],
            split=system["split"],
            style=styles[system["name"]],
            value=system[key],
            spread=0.0,
            tip=f"{system['name']}, {system['split']}: {title} {formatting.score(system[key])}, {subtitle}",
        )
        for system in rows
    ]
    majority = board["baselines"]["majority"]["average"] if key == "average" else None
    return {"task": "", "title": title, "subtitle": subtitle, **bar_rows(bars, majority)}


def _benchmark(
    board: Mapping[str, Any], task: str, styles: Mapping[str, str], majority: float | None
) -> dict[str, Any]:
    """Our rows, then the paper's: each of its systems once, on dev where the paper tells that."""
    metric = board["headline"][task]
    measured: list[Mapping[str, Any]] = []
    quoted: dict[str, Mapping[str, Any]] = {}
    for system in board["systems"]:
        if metric not in system["scores"].get(task, {}):
            continue
        if system["kind"] != "quoted":
            measured.append(system)
        elif system["paper_name"] not in quoted or system["split"] == "dev":
            quoted[system["paper_name"]] = system
    bars = [
        Bar(
            name=system.get("paper_name", system["name"]),
            kind=system["kind"],
            split=system["split"],
            style=styles[system["name"]],
            value=system["scores"][task][metric]["mean"],
            spread=system["scores"][task][metric]["std"] or 0.0,
            tip=cell_tip(system, task, metric),
        )
        for system in [*measured, *list(quoted.values())[:NUM_QUOTED]]
    ]
    title = board["titles"][task]
    return {"task": task, "title": title, "subtitle": metric_title(metric), **bar_rows(bars, majority)}
