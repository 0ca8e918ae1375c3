"""leaderboard.html and board.html: self-contained pages of a leaderboard, and their main table."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import markupsafe
import yaml

from tasks.leaderboard import charts, formatting, schema
from tasks.leaderboard.comparisons import shared_averages
from tasks.leaderboard.paper_scores import paper_tables
from tasks.leaderboard.settings import short_keys
from tasks.project.pages import asset, script_source, templates, visible

MAX_TILES = 4  # maximum number of systems whose averages are at the top; the table lists all
ASSETS = Path(__file__).parent / "assets"
MODES = {
    "mean": "mean ± deviation",
    "median": "median of the seeds",
    "best": "best seed",
    "ensemble": "ensemble of the seeds",
    "selection": "selection rows minus reported rows",
    "runs": "number of seeds",
    "difference": "difference from the reference",
    "p": "p-value versus the reference",
    "rows": "share of the training rows",
    "seconds": "seconds",
    "energy": "energy",
}
"""Values that a table cell can show, if they are known."""
MARKS = {"ahead": "▲", "behind": "▼", "perhaps ahead": "△", "perhaps behind": "▽", "level": "≈"}


def render_page(board: schema.Leaderboard, record: schema.RunRecord | None = None) -> str:
    """Render the page of one run. Untrusted text is escaped; equal boards give equal pages.

    With the `record` of the run, the page also shows when, where and with which parameters it ran, and what it cost.
    """
    styles = charts.styles_of(board)
    if record is not None:
        systems = [
            one.model_copy(update={"cost": record.cost.get(one.name)}) if isinstance(one, schema.RunSystem) else one
            for one in board.systems
        ]
        board = board.model_copy(update={"systems": systems})
    averages = shared_averages(board.measured, board.headline)
    best = sorted(board.measured, key=lambda system: -averages.get(system.name, -math.inf))
    summaries = {name: _heldout_summary(curve) for name, curve in board.curves.pretrain.items()}
    return _render(
        "page.html.j2",
        "Cloze leaderboard",
        board,
        tiles=best[: MAX_TILES - 1] if len(best) > MAX_TILES else board.measured,
        pretraining=[{"name": name, **summary} for name, summary in summaries.items() if summary],
        gain=charts.gap_rows(board.gap, board.majority) if board.gap else None,
        bars=[charts.bar_plot(chart) for chart in charts.bar_charts(board)],
        pretraining_plots=[
            charts.line_plot(chart, num_x_ticks=4, num_y_ticks=5) for chart in charts.pretraining_charts(board, styles)
        ],
        finetuning={
            task: [charts.line_plot(chart, num_y_ticks=2) for chart in charts.finetuning_charts(board, task, styles)]
            for task in board.tasks
        },
        errors={task: board.errors[task] for task in board.tasks if board.errors.get(task)},
        classes={task: board.classes[task] for task in board.tasks if board.classes.get(task)},
        run=record,
        params=yaml.safe_dump(record.params, sort_keys=False) if record and record.params else "",
        ranked=[system.name for system in best],
        cells_of={
            task: next((one.cells[task] for one in board.measured if task in one.cells), None) for task in board.tasks
        },
    )


def render_combined(board: schema.CombinedBoard, pages: Collection[str]) -> str:
    """Render the page over all recorded runs; `pages` are the digests of the runs whose pages exist."""
    keys = dict.fromkeys(key for one in board.settings.values() for key in one)
    return _render("board.html.j2", "Cloze: all runs", board, pages=pages, keys=short_keys(keys))


def _breakable(name: str) -> markupsafe.Markup:
    """Escape the name of a system; a narrow column breaks it in front of its run."""
    return markupsafe.Markup("<wbr>@").join(visible(name).split("@"))


def _render(template: str, title: str, board: schema.BoardModel, **view: Any) -> str:
    environment, script = templates(ASSETS), asset(ASSETS / "script.js")
    for name in ("score", "signed", "recipe", "seconds", "energy", "selection", "gap", "seeds"):
        environment.filters[name] = getattr(formatting, name)
    environment.filters["metric"] = formatting.metric_title
    environment.filters["breakable"] = _breakable
    groups = (("Measured", "measured", board.measured), ("Quoted from the paper", "quoted", board.quoted))
    return environment.get_template(template).render(
        board=board,
        title=title,
        style=asset(ASSETS / "style.css"),
        script=script,
        script_source=script_source(script),
        styles=charts.styles_of(board),
        modes=modes_of(board),
        measured=board.measured,
        groups=[
            {"title": title, "kind": kind, "rows": [table_row(board, system) for system in systems]}
            for title, kind, systems in groups
        ],
        num_folded=sum(not system.prominent for system in board.quoted),
        shared=shared_averages(board.measured, board.headline),
        majority=board.majority,
        majority_average=board.baselines["majority"].average,
        against=versus_reference(board),
        selection_notes=selection_notes(board),
        coverage_note=coverage_note(board),
        paper=paper_tables(board.measured) if board.quoted else [],
        cost=_cost_plot(board),
        **view,
    )


def _cost_plot(board: schema.BoardModel) -> dict[str, Any] | None:
    """Compute the plot of averages over costs; None unless the cost of two systems is known."""
    averages = shared_averages(board.measured, board.headline)
    known = [
        (system, system.cost, seconds, averages[system.name])
        for system in board.measured
        if system.cost and (seconds := system.cost.seconds) and system.name in averages
    ]
    if len(known) < 2:
        return None
    styles = charts.styles_of(board)
    size, unit = formatting.time_unit(max(seconds for _, _, seconds, _ in known))
    lines = [
        charts.Line(styles[system.name], [(seconds / size, average)], "dots", system.name)
        for system, _, seconds, average in known
    ]
    rows = [
        {"name": system.name, "average": average, "seconds": seconds, "has_pretraining": bool(cost.pretraining)}
        for system, cost, seconds, average in known
    ]
    plot = charts.line_plot(charts.LineChart("Average score by cost", lines), num_x_ticks=5, num_y_ticks=4)
    return {"plot": plot, "unit": unit, "rows": rows}


def _heldout_summary(curve: schema.PretrainCurve) -> dict[str, str] | None:
    last = next((row for row in reversed(curve.heldout) if "mlm_accuracy" in row), None)
    if last is None:
        return None
    more = [f"{curve.encoder}, held-out documents"]
    more += [f"loss {last['mlm_loss']:.2f}"] if "mlm_loss" in last else []
    for metric, title in (("nsp_accuracy", "next sentence"), ("sop_accuracy", "sentence order")):
        if metric in last:
            more.append(f"{title} {formatting.percent(last[metric])}")
    more.append(f"{formatting.count(curve.num_steps)} steps")
    if curve.num_tokens_seen:
        more.append(f"{formatting.count(curve.num_tokens_seen)} tokens")
    return {"accuracy": formatting.percent(last["mlm_accuracy"]), "more": " · ".join(more)}


def modes_of(board: schema.BoardModel) -> dict[str, str]:
    cells = [cell for system in board.measured for cell in system.cells.values()]
    known = {key for system in board.measured if system.cost for key in system.cost.total}
    has_value = {
        "seconds": "seconds" in known,
        "energy": "energy_joules" in known,
        "ensemble": any(cell.ensemble for cell in cells),
        "selection": any(cell.selection for cell in cells),
        "difference": bool(board.comparisons),
        "p": bool(board.comparisons),
    }
    return {mode: title for mode, title in MODES.items() if has_value.get(mode, True)}


def selection_notes(board: schema.BoardModel) -> list[str]:
    """Say on which dev rows recipes, epochs and thresholds were selected, and for which benchmarks."""
    kinds: dict[str, list[str]] = {}
    for task in board.tasks:
        cells = [system.cells[task] for system in board.measured if task in system.cells]
        selected = list(dict.fromkeys(what for cell in cells for what in cell.selected))
        if not selected:
            kind = "Nothing was selected on dev rows"
        elif any(map(formatting.selects_on_reported, cells)):
            kind = "† Selected and reported on the same rows, so the scores are somewhat too high"
        else:
            kind = f"{formatting.join_words(selected).capitalize()} selected on other dev rows than those reported"
        if cells:
            kinds.setdefault(kind, []).append(board.titles[task])
    return [f"{kind}: {'all benchmarks' if len(kinds) == 1 else ', '.join(tasks)}." for kind, tasks in kinds.items()]


def coverage_note(board: schema.BoardModel) -> str:
    """Say which comparisons with the reference cover the pre-training seed."""
    several = {one.name for one in board.measured if any(cell.num_pretrainings > 1 for cell in one.cells.values())}
    trained = [one.name for one in board.measured if one.kind != "scratch" and one.name not in several]
    single = board.reference if board.reference in trained else ", ".join(trained)
    if not single:
        return "The intervals and tests also cover the pre-training seed (Multi-Bootstrap)."
    return (
        f"Only one pre-training of {single}: no interval or test with it covers the pre-training seed, so a difference "
        "is one between two encoders, not between two recipes. Give both encoders several seeds to compare recipes."
    )


def table_row(board: schema.BoardModel, system: schema.MeasuredSystem | schema.QuotedSystem) -> dict[str, Any]:
    total = system.cost.total if isinstance(system, schema.MeasuredSystem) and system.cost else {}
    seconds, joules = total.get("seconds"), total.get("energy_joules")
    totals = {"seconds": (seconds, formatting.seconds(seconds)), "energy": (joules, formatting.energy(joules))}
    cells: list[tuple[str, dict[str, Any] | None]] = []
    for task, metric in board.headline.items():
        if system.score(task, metric) is None:
            cells.append((task, None))
        elif isinstance(system, schema.QuotedSystem):
            cells.append((task, _quoted_cell(board, system, task, metric)))
        else:
            cells.append((task, _measured_cell(board, system, task, metric)))
    return {
        "system": system,
        "cells": cells,
        "best_average": _is_best(board, system, "average"),
        "best_glue": _is_best(board, system, "glue_average"),
        "totals": {mode: total for mode, total in totals.items() if total[0] is not None},
    }


def _is_best(board: schema.BoardModel, system: schema.System, key: str) -> bool:
    values = [value for one in board.measured if (value := getattr(one, key)) is not None]
    return isinstance(system, schema.MeasuredSystem) and len(values) > 1 and getattr(system, key) == max(values)


def best_mean(board: schema.BoardModel, task: str, metric: str) -> float | None:
    """Find the highest mean of a column among systems scored on the reference's dev rows (among all systems if the
    reference has no score); None unless there are two."""
    measured = [system for system in board.measured if task in system.scores]
    reference = next((system for system in measured if system.name == board.reference), None)
    if reference is not None:
        measured = [one for one in measured if one.cells[task].dev_rows == reference.cells[task].dev_rows]
    means = [score.mean for system in measured if (score := system.score(task, metric))]
    return max(means) if len(means) > 1 else None


def _quoted_cell(board: schema.BoardModel, system: schema.QuotedSystem, task: str, metric: str) -> dict[str, Any]:
    mean = system.scores[task][metric].mean
    modes = ["mean", "median", "best"]
    return {
        **dict.fromkeys(("best", "flag", "collapsed", "partial", "same_rows"), False),
        "mark": "",
        "tip": charts.cell_tip(board, system, task, metric),
        "shown": [(modes, formatting.score(mean), "")],
        "values": dict.fromkeys(modes, mean),
    }


def _measured_cell(board: schema.BoardModel, system: schema.MeasuredSystem, task: str, metric: str) -> dict[str, Any]:
    score, cell = system.scores[task][metric], system.cells[task]
    comparison = board.comparisons.get(system.name, {}).get(task) or schema.ReferenceComparison()
    reason = comparison.reason
    cost = system.cost.tasks.get(task, {}) if system.cost else {}
    ensemble, share = (cell.ensemble or {}).get(metric), _share(cell)
    seconds, joules = cost.get("seconds"), cost.get("energy_joules")
    # mode → value to sort by, text, small text
    values: dict[str, tuple[float | None, str, str]] = {
        "mean": (
            score.mean,
            formatting.score(score.mean),
            ", ".join(filter(None, [formatting.deviation(score.std), formatting.learned(cell)])),
        ),
        "median": (score.median, formatting.score(score.median), ""),
        "best": (score.best, formatting.score(score.best), ""),
        "ensemble": (ensemble, formatting.score(ensemble), ""),
        "selection": (
            cell.selection.difference if cell.selection else None,
            formatting.signed(cell.selection.difference if cell.selection else None),
            formatting.gap_interval(cell),
        ),
        "runs": (score.num_runs, str(score.num_runs), f"{cell.num_degenerate} ⚑" if cell.num_degenerate else ""),
        "difference": (comparison.difference, formatting.signed(comparison.difference), reason),
        "p": (comparison.p_corrected, formatting.p_value(comparison.p_corrected), reason),
        "rows": (share, formatting.percent(share), f"{cell.num_train_rows:,}"),
        "seconds": (seconds, formatting.seconds(seconds), ""),
        "energy": (joules, formatting.energy(joules), ""),
    }
    return {
        "tip": "; ".join([charts.cell_tip(board, system, task, metric), *_more(board, cell, metric, comparison, cost)]),
        "shown": [([mode], *values[mode][1:]) for mode in modes_of(board)],
        "values": {mode: value for mode, (value, _, _) in values.items() if value is not None},
        "best": score.mean == best_mean(board, task, metric) and not reason,  # equal scores on other rows do not tie
        "flag": cell.num_degenerate,
        "collapsed": cell.all_degenerate,
        "partial": formatting.is_partial(cell),
        "same_rows": formatting.selects_on_reported(cell),
        "mark": "≠" if reason else MARKS.get(comparison.verdict, ""),
        "verdict": comparison.verdict,
        "reason": reason,
    }


def _share(cell: schema.CellRecord) -> float | None:
    if cell.num_all_train_rows:
        return cell.num_train_rows / cell.num_all_train_rows
    return None if formatting.is_partial(cell) else 1.0


def _more(
    board: schema.BoardModel,
    cell: schema.CellRecord,
    metric: str,
    comparison: schema.ReferenceComparison,
    cost: schema.Cost,
) -> list[str]:
    parts = []
    if cell.after:
        parts.append(f"after {', '.join(cell.after)}")
    if cell.ensemble:
        parts.append(f"ensemble of the seeds {formatting.score(cell.ensemble.get(metric))}")
    if cell.num_pruned:
        parts.append(f"{cell.num_pruned} runs of pruned recipes")
    if comparison.reason:
        parts.append(f"not compared: {comparison.reason}")
    elif comparison.verdict != "none":
        line = f"{formatting.signed(comparison.difference)} versus {board.reference}"
        if comparison.low is not None:
            line += f" (rows: {formatting.interval(comparison.low, comparison.high)}"
            if comparison.pretrain_low is not None:
                both = formatting.interval(comparison.pretrain_low, comparison.pretrain_high)
                line += f"; rows and pre-training seeds: {both}"
            line += ")"
        p, corrected = formatting.p_value(comparison.p), formatting.p_value(comparison.p_corrected)
        parts.append(f"{line}, p {p}, corrected {corrected}")
    if "seconds" in cost:
        parts.append(f"{formatting.seconds(cost['seconds'])} in {cost['num_timed']} of {cost['num_jobs']} jobs")
    if "energy_joules" in cost:
        parts.append(formatting.energy(cost["energy_joules"]))
    if "peak_memory_bytes" in cost:
        parts.append(f"{formatting.memory(cost['peak_memory_bytes'])} at most")
    return parts


def versus_reference(board: schema.BoardModel) -> list[dict[str, Any]]:
    """Yield a row per system: benchmarks on which it is ahead of the reference, behind, level, or not compared."""
    rows = []
    for name, records in board.comparisons.items():
        verdicts: dict[str, list[str]] = {verdict: [] for verdict in (*MARKS, "untested")}
        reasons: dict[str, list[str]] = {}
        for task, record in records.items():
            title = board.titles[task]
            if record.reason:
                reasons.setdefault(record.reason, []).append(title)
            else:
                verdicts[record.verdict].append(f"{title} {formatting.signed(record.difference)}")
        not_compared = [f"{', '.join(tasks)} ({reason})" for reason, tasks in reasons.items()]
        num_not_compared = sum(map(len, reasons.values()))
        rows.append({"name": name, **verdicts, "reasons": not_compared, "num_not_compared": num_not_compared})
    return rows


def table_rows(board: schema.BoardModel) -> list[dict[str, str]]:
    """Convert the board to rows of text, for Prefect's table artifact."""
    rows = []
    for system in [*board.measured, *(system for system in board.quoted if system.prominent)]:
        row = {"system": system.name, "kind": system.kind, "split": system.split}
        row["average"] = formatting.score(system.average) if isinstance(system, schema.MeasuredSystem) else ""
        row["GLUE as Table 1"] = formatting.score(system.glue_average)
        for task, metric in board.headline.items():
            score = system.score(task, metric)
            text = f"{formatting.score(score.mean)} {formatting.deviation(score.std)}".strip() if score else ""
            row[board.titles[task]] = text
        rows.append(row)
    return rows
