"""One leaderboard over many recorded runs: every system once, compared with the reference of them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from model.benchmarks.table import BENCHMARKS
from tasks.leaderboard.comparisons import Predictions, compare_all, merit, reference_of
from tasks.leaderboard.paper_scores import quoted_systems
from tasks.leaderboard.schema import (
    Baselines,
    CombinedBoard,
    CombinedSystem,
    MajorityBaseline,
    RunCounts,
    RunRecord,
    RunSummary,
    SystemCost,
)
from tasks.leaderboard.scores import average, means_of


def combined_board(records: Sequence[RunRecord], predictions: Predictions, reference: str = "") -> CombinedBoard:
    """Combine `records`, the latest first.

    A system is identified by its jobs: one that several runs share is listed once, with all its runs. Different
    systems of the same name are distinguished by the run that they were first recorded in. An average is over all
    benchmarks of all runs; a system that lacks one has none.

    Raises:
        UserError: no system is called `reference`.
    """
    oldest_first = records[::-1]
    tasks = _tasks(oldest_first)
    titles = {task: title for record in oldest_first for task, title in record.titles.items()}
    headlines = {task: metric for record in oldest_first for task, metric in record.headline.items()}
    headline = {task: headlines[task] for task in tasks}
    custom = {task: row for record in oldest_first for task, row in record.custom.items()}
    systems = _systems(records, headline)
    best = reference_of(systems, headline, reference)
    cells = [cell for system in systems for cell in system.cells.values()]
    return CombinedBoard(
        tasks=tasks,
        titles={task: titles[task] for task in tasks},
        headline=headline,
        systems=[*systems, *quoted_systems(tasks)],
        baselines=Baselines(majority=_majority(records, best, headline)),
        reference=best.name if best else None,
        comparisons=compare_all(systems, headline, best, predictions, BENCHMARKS | custom),
        gap=None,
        gaps=[],
        missing=[],
        runs=RunCounts(
            total=sum(len(cell.jobs) for cell in cells), degenerate=sum(cell.num_degenerate for cell in cells)
        ),
        notes=list(dict.fromkeys(note for record in records for note in record.notes)),
        records=[_summary(record) for record in records],
    )


def _tasks(oldest_first: Sequence[RunRecord]) -> list[str]:
    """All benchmarks: those of the table in its order, then custom ones in the order of the runs."""
    found = dict.fromkeys(task for record in oldest_first for task in record.tasks)
    return [*(task for task in BENCHMARKS if task in found), *(task for task in found if task not in BENCHMARKS)]


def _systems(records: Sequence[RunRecord], headline: Mapping[str, str]) -> list[CombinedSystem]:
    """Every system once, the best first."""
    found: dict[str, CombinedSystem] = {}
    for record in records:
        for system in record.systems:
            cost = record.cost.get(system.name)
            known = found.get(system.digest)
            if known is None:
                content = system.model_dump(exclude={"average_of"}) | {
                    "encoder": system.name,
                    "runs": [record.digest],
                    "average": average(means_of(system.scores), headline),
                    "cost": cost,
                }
                found[system.digest] = CombinedSystem.parse(content, f"record {record.digest}")
            else:
                update = {"runs": [*known.runs, record.digest], "cost": _fuller(known.cost, cost)}
                found[system.digest] = known.model_copy(update=update)
    names = [system.name for system in found.values()]
    systems = [
        system.model_copy(update={"name": f"{system.name}@{system.runs[-1][:6]}"})
        if names.count(system.name) > 1
        else system
        for system in found.values()
    ]
    return sorted(systems, key=lambda system: merit(system, headline), reverse=True)


def _fuller(one: SystemCost | None, other: SystemCost | None) -> SystemCost | None:
    """Choose the account of the same jobs that has more timed jobs."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda cost: cost.total["num_timed"])


def _majority(
    records: Sequence[RunRecord], reference: CombinedSystem | None, headline: Mapping[str, str]
) -> MajorityBaseline:
    """Scores of the majority label on the dev rows of the reference; they differ on other rows."""
    record = next((record for record in records if reference and record.digest in reference.runs), None)
    scores = record.majority.scores if record else {}
    return MajorityBaseline(average=average(scores, headline), scores=scores)


def _summary(record: RunRecord) -> RunSummary:
    totals = [cost.total for cost in record.cost.values()]
    seconds = [total["seconds"] for total in totals if "seconds" in total]
    energies = [total["energy_joules"] for total in totals if "energy_joules" in total]
    content = record.model_dump(include=set(RunSummary.model_fields) - {"systems"}) | {
        "systems": [system.name for system in record.systems],
        "num_jobs": sum(len(cell.jobs) for system in record.systems for cell in system.cells.values()),
        "seconds": sum(seconds) if seconds else None,
        "energy_joules": sum(energies) if energies and len(energies) == len(totals) else None,
    }
    return RunSummary.parse(content, f"record {record.digest}")
