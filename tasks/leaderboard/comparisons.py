"""Everyone against the champion: which differences are taken, and which of them another seed and other rows would show.

A difference is taken only between cells of one split, measured on the same dev rows. It is called real when every test
that can be made says so at 5 %: over the seeds (would other seeds show it?) and over the dev rows (would other rows
show it?). The p of a cell is the larger of the two; below 5 % after Holm's correction over the benchmarks of one system
it is firm, before the correction a hint.
"""

from __future__ import annotations

import difflib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from model.benchmarks.table import BENCHMARKS, Benchmark
from model.common.errors import UserError
from tasks.leaderboard.scores import rounded
from tasks.stats.compare import LEVEL, Run, compare_runs
from tasks.stats.seeds import holm, seed_test

NUM_RESAMPLES = 2000  # of the dev rows, per cell: a p of 0.0005 at best, which Holm's thirteenfold leaves below 0.01

System = Mapping[str, Any]
Predictions = Callable[[System, str], list[list[dict[str, Any]]] | None]
"""System and benchmark → the predictions of the cell's runs, in their order; None where they are not at hand."""


def champion_of(systems: Sequence[System], headline: Mapping[str, str], wanted: str = "") -> str | None:
    """The name of the system that others are compared with: the best that is called `wanted`, else the best.

    The best has the most benchmarks, and of these the highest mean headline score (the first of equals). None where
    nothing was measured.

    Raises:
        UserError: no system is called `wanted`.
    """
    candidates = [one for one in systems if not wanted or wanted in (one["name"], one.get("encoder"))]
    if wanted and not candidates:
        names = [system["name"] for system in systems]
        nearest = difflib.get_close_matches(wanted, names, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"there are {', '.join(names) or 'none'}"
        raise UserError(f"leaderboard.champion: no system '{wanted}'; {hint}")
    return max(candidates, key=lambda system: _standing(system, headline))["name"] if candidates else None


def _standing(system: System, headline: Mapping[str, str]) -> tuple[int, float]:
    means = [system["scores"][task][metric]["mean"] for task, metric in headline.items() if _has(system, task, metric)]
    return len(means), sum(means) / len(means) if means else 0.0


def _has(system: System, task: str, metric: str) -> bool:
    return metric in system["scores"].get(task, {})


def why_not(ours: System, theirs: System, task: str, metric: str) -> str:
    """Why no difference is taken between two cells; empty where it is."""
    for system in (ours, theirs):
        if not _has(system, task, metric):
            return f"{system['name']} has no score"
    if ours["split"] != theirs["split"]:
        return f"{ours['split']} against {theirs['split']}"
    one, other = ours["cells"][task], theirs["cells"][task]
    if one["num_dev_rows"] != other["num_dev_rows"]:
        return f"other dev rows: {one['num_dev_rows']:,} against {other['num_dev_rows']:,}"
    if one["dev_digest"] != other["dev_digest"]:
        return "other dev rows of the same number"
    return ""


def compare_all(
    systems: Sequence[System],
    headline: Mapping[str, str],
    champion: str | None,
    predictions: Predictions,
    rows: Mapping[str, Benchmark] = BENCHMARKS,
) -> dict[str, dict[str, dict[str, Any]]]:
    """system → benchmark → the comparison with the champion, for every measured system but the champion.

    Each holds reason ("" where a difference is taken), difference (points, positive where the system is better than
    the champion), low and high (its 95 % interval over dev rows), row_p, seed_p (None where that test cannot be made),
    p (the greater one), p_corrected, and verdict: ahead or behind, perhaps ahead or perhaps behind (not after the
    correction), level, untested (no test can be made), or none.
    """
    best = next((system for system in systems if system["name"] == champion), None)
    if best is None:
        return {}
    of_champion = {task: predictions(best, task) for task in headline if task in best["cells"]}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for system in systems:
        if system["name"] == best["name"]:
            continue
        records = {}
        for task, metric in headline.items():
            reason = why_not(system, best, task, metric)
            mine = None if reason else predictions(system, task)
            runs = (_runs(system, task, mine), _runs(best, task, of_champion.get(task)))
            row = rows.get(task) if mine and of_champion[task] else None
            records[task] = _NOT_TAKEN | {"reason": reason} if reason else _compared(metric, row, *runs)
        _correct(records.values())
        found[system["name"]] = records
    return found


_NOT_TAKEN: dict[str, Any] = {
    **dict.fromkeys(("difference", "low", "high", "row_p", "seed_p", "p", "p_corrected")),
    "verdict": "none",
}


def _runs(system: System, task: str, predictions: list[list[dict[str, Any]]] | None) -> list[Run]:
    cell = system["cells"].get(task)
    if cell is None:
        return []
    records = predictions or [[] for _ in cell["seeds"]]
    return [Run(*run) for run in zip(cell["seeds"], cell["values"], records, strict=True)]


def _compared(metric: str, row: Benchmark | None, ours: list[Run], theirs: list[Run]) -> dict[str, Any]:
    """A difference that is taken, its p not yet corrected; `row` is None where the predictions are not at hand."""
    if row is not None:
        result = compare_runs(row, metric, ours, theirs, NUM_RESAMPLES)
        rows, seeds = result["rows"], result["seeds"]
    else:
        rows, seeds = {}, seed_test({run.seed: run.score for run in ours}, {run.seed: run.score for run in theirs})
    tested = {"row_p": rows.get("p"), "seed_p": seeds["p"] if seeds else None}
    known = [p for p in tested.values() if p is not None]
    return {
        "reason": "",
        "difference": rounded(_mean(ours) - _mean(theirs)),
        **{end: None if rows.get(end) is None else rounded(rows[end]) for end in ("low", "high")},
        **{name: None if p is None else _three_digits(p) for name, p in tested.items()},
        "p": _three_digits(max(known)) if known else None,
        "p_corrected": None,
        "verdict": "untested",
    }


def _correct(records: Iterable[dict[str, Any]]) -> None:
    """Holm's correction over the benchmarks of one system, and the verdicts."""
    tested = [record for record in records if record["p"] is not None]
    for record, p in zip(tested, holm([record["p"] for record in tested]), strict=True):
        side = "ahead" if record["difference"] > 0 else "behind"
        record["p_corrected"] = _three_digits(p)
        record["verdict"] = side if p < LEVEL else f"perhaps {side}" if record["p"] < LEVEL else "level"


def _mean(runs: Sequence[Run]) -> float:
    return statistics.fmean(run.score for run in runs)


def _three_digits(p: float) -> float:
    return float(f"{p:.3g}")
