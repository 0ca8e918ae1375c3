"""One board over many recorded runs: every system once, compared with the champion of them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from model.benchmarks.table import BENCHMARKS
from tasks.leaderboard.comparisons import Predictions, champion_of, compare_all
from tasks.leaderboard.history import RunRecord
from tasks.leaderboard.paper_scores import quoted_systems
from tasks.leaderboard.scores import average


def combined_board(records: Sequence[RunRecord], predictions: Predictions, champion: str = "") -> dict[str, Any]:
    """The board of `records` (the latest first) in the form of leaderboard.json, without curves and errors.

    A system is named by its jobs: one that several runs have stands once, with all its runs. Systems of one name from
    different runs are told apart by the run that they came with first. An average is over all benchmarks of all
    runs, and missing for a system that lacks one.

    Raises:
        UserError: no system is called `champion`.
    """
    tasks = _tasks(records)
    titles = {task: title for record in reversed(records) for task, title in record.titles.items()}
    headline = {task: metric for record in reversed(records) for task, metric in record.headline.items()}
    headline = {task: headline[task] for task in tasks}
    systems = _systems(records, headline)
    own = {task: row for record in reversed(records) for task, row in record.own.items()}
    best = champion_of(systems, headline, champion)
    return {
        "format": 2,
        "tasks": tasks,
        "titles": {task: titles[task] for task in tasks},
        "headline": headline,
        "systems": systems + quoted_systems(tasks),
        "baselines": {"majority": _majority(records, systems, best, headline)},
        "champion": best,
        "comparisons": compare_all(systems, headline, best, predictions, BENCHMARKS | own),
        "records": [_run(record) for record in records],
        "lead": None,
        "leads": [],
        "missing": [],
        "runs": {
            "total": sum(len(cell["jobs"]) for system in systems for cell in system["cells"].values()),
            "degenerate": sum(cell["num_degenerate"] for system in systems for cell in system["cells"].values()),
        },
        "notes": list(dict.fromkeys(note for record in records for note in record.notes)),
    }


def _tasks(records: Sequence[RunRecord]) -> list[str]:
    """All benchmarks: those of the table in its order, then others in the order of the runs."""
    found = dict.fromkeys(task for record in reversed(records) for task in record.tasks)
    return [*(task for task in BENCHMARKS if task in found), *(task for task in found if task not in BENCHMARKS)]


def _systems(records: Sequence[RunRecord], headline: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every system once, best first."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        for system in (one.model_dump() for one in record.systems):
            known = found.setdefault(
                system["digest"],
                {
                    **system,
                    "encoder": system["name"],
                    "runs": [],
                    "average": average(system["scores"], headline),
                    "cost": None,
                },
            )
            known["runs"].append(record.digest)
            known["cost"] = _fuller(known["cost"], record.cost.get(system["name"]))
    names = [system["name"] for system in found.values()]
    for system in found.values():
        if names.count(system["name"]) > 1:
            system["name"] = f"{system['encoder']}@{system['runs'][-1][:6]}"
    ranked = sorted(found.values(), key=_merit(headline))
    return ranked


def _fuller(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    """Of two accounts of the same jobs, the one that timed more of them."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda cost: cost["total"]["num_timed"])


def _merit(headline: Mapping[str, str]) -> Callable[[Mapping[str, Any]], tuple[int, float]]:
    def merit(system: Mapping[str, Any]) -> tuple[int, float]:
        means = [
            system["scores"][task][metric]["mean"]
            for task, metric in headline.items()
            if metric in system["scores"].get(task, {})
        ]
        return -len(means), -sum(means) / len(means) if means else 0.0

    return merit


def _majority(
    records: Sequence[RunRecord],
    systems: Sequence[Mapping[str, Any]],
    champion: str | None,
    headline: Mapping[str, str],
) -> dict[str, Any]:
    """The majority answer on the champion's dev rows: other rows have another one."""
    best = next((system for system in systems if system["name"] == champion), None)
    record = next((record for record in records if best and record.digest in best["runs"]), None)
    scores = record.majority.get("scores", {}) if record else {}
    means = {task: {metric: {"mean": value} for metric, value in row.items()} for task, row in scores.items()}
    return {"split": "dev", "average": average(means, headline), "scores": scores}


def _run(record: RunRecord) -> dict[str, Any]:
    """What the page tells of a run."""
    totals = [cost["total"] for cost in record.cost.values()]
    timed = [total for total in totals if "seconds" in total]
    energies = [total["energy_joules"] for total in timed if "energy_joules" in total]
    return {
        **record.model_dump(exclude={"systems", "majority", "cost", "titles", "headline", "notes", "format", "own"}),
        "systems": [system.name for system in record.systems],
        "num_jobs": sum(len(cell.jobs) for system in record.systems for cell in system.cells.values()),
        "seconds": sum(total["seconds"] for total in timed) if timed else None,
        "energy_joules": sum(energies) if energies and len(energies) == len(totals) else None,
    }
