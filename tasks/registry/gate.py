"""The promotion gate: decide whether a challenger may become the champion, with a reason for every rule.

A challenger must be *shown* to be no worse, because a test on too little data finds no difference. On each benchmark,
the difference of the two means has a standard error, from the variation over seeds and (if known) over dev rows. The
errors of the benchmarks are combined into that of the average. The one-sided lower limit of the average
difference, at `confidence`, must not be below `-margin`.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from model.benchmarks.table import BENCHMARKS, Benchmark
from model.common.errors import UserError
from model.common.files import read_json, write_bytes, write_json
from tasks.leaderboard import history
from tasks.leaderboard.comparisons import runs_of
from tasks.leaderboard.inputs import Inputs
from tasks.leaderboard.schema import CellRecord, FileModel, RunRecord
from tasks.params.root import PromotionSettings
from tasks.project.project import Project
from tasks.stats.compare import combined_error, compare_runs, t_quantile

NUM_RESAMPLES = 2000  # determine a standard error to within 2 percent
EVALUATION = "evaluation"
_SCORES = "scores.json"


class Candidate(FileModel):
    """An encoder that the gate judges: its results on the leaderboard and its predictions."""

    name: str
    """The system's name on the leaderboard."""
    digest: str
    """Identifies its fine-tuning jobs; systems with the same digest are identical."""
    cells: dict[str, CellRecord]
    """benchmark → result"""
    headline: dict[str, str]
    """benchmark → metric of the values in `cells`"""
    predictions: dict[str, list[list[dict[str, Any]]]] = Field(default={}, exclude=True)
    """benchmark → predictions of the runs, a list per seed; excludes benchmarks without available predictions"""
    custom: dict[str, Benchmark] = Field(default={}, validation_alias="own", serialization_alias="own")
    card_faults: tuple[str, ...] = ()
    """Facts that are missing from its model card (`tasks.registry.model_card`)."""


@dataclass(frozen=True)
class Rule:
    name: str
    passed: bool
    reason: str


@dataclass(frozen=True)
class Verdict:
    """Decision of the gate."""

    challenger: str
    champion: str
    """Name of the champion; empty if there is none."""
    difference: float | None
    """Challenger minus champion in points: the mean over their common benchmarks."""
    low: float | None
    """One-sided lower limit of the difference."""
    rules: tuple[Rule, ...]
    tasks: Mapping[str, Mapping[str, float | None]]
    """benchmark → difference, error, and one-sided limits low and high; None if the error is unknown"""

    @property
    def promoted(self) -> bool:
        return all(rule.passed for rule in self.rules)

    @property
    def reason(self) -> str:
        """Return the rules that failed, or the reasons of all rules if it passed, in one line."""
        refused = [rule for rule in self.rules if not rule.passed]
        return "; ".join(f"{rule.name}: {rule.reason}" for rule in refused or self.rules)

    def record(self) -> dict[str, Any]:
        head = {"challenger": self.challenger, "champion": self.champion}
        return {**head, "promoted": self.promoted, "reason": self.reason, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class _Difference:
    """Compute challenger minus champion on one benchmark, with standard error and degrees of freedom."""

    value: float
    error: float | None
    freedom: float

    def limits(self, confidence: float) -> dict[str, float | None]:
        if self.error is None:
            return {"difference": self.value, "error": None, "low": None, "high": None}
        half = t_quantile(confidence, self.freedom) * self.error
        return {"difference": self.value, "error": self.error, "low": self.value - half, "high": self.value + half}


def judge(challenger: Candidate, champion: Candidate | None, settings: PromotionSettings) -> Verdict:
    """Evaluate all rules. Equal arguments give equal verdicts, because resampling uses a fixed seed."""
    faults = challenger.card_faults
    card = Rule("card is complete", not faults, "; ".join(faults) or "nothing is missing")
    alone = [_not_degenerate(challenger, settings), card]
    if champion is None:
        said = "there is no champion yet to compare with" if challenger.cells else "it has no score"
        first = Rule("average", bool(challenger.cells), said)
        return Verdict(challenger.name, "", None, None, (first, *alone), {})
    is_new = challenger.digest != champion.digest
    said = "other fine-tuning jobs than the champion's" if is_new else "it is the champion itself"
    comparable = _comparable(challenger, champion)
    compared = champion.cells if comparable.passed else ()
    differences = {task: _difference(task, challenger, champion) for task in compared}
    average, difference, low = _average(differences, settings)
    rules = [Rule("new", is_new, said), comparable, average]
    rules += [_not_fallen(task, differences.get(task), settings) for task in settings.must_not_fall]
    rules.append(_collapses_no_more_often(challenger, champion, settings))
    tasks = {task: one.limits(settings.confidence) for task, one in differences.items()}
    return Verdict(challenger.name, champion.name, difference, low, (*rules, *alone), tasks)


def _comparable(challenger: Candidate, champion: Candidate) -> Rule:
    """Require all benchmarks of the champion, with the same metric on the same dev rows."""
    faults = []
    for task, theirs in champion.cells.items():
        ours = challenger.cells.get(task)
        if ours is None:
            faults.append(f"the challenger has no score on {task}")
        elif challenger.headline[task] != champion.headline[task]:
            faults.append(f"{task} is scored by {challenger.headline[task]}, the champion by {champion.headline[task]}")
        elif ours.dev_rows != theirs.dev_rows:
            faults.append(f"{task} has other dev rows than the champion was scored on")
    said = "; ".join(faults) or f"the same {len(champion.cells)} tasks on the same dev rows"
    return Rule("comparable", not faults and bool(champion.cells), said if champion.cells else "no task to compare on")


def _difference(task: str, challenger: Candidate, champion: Candidate) -> _Difference:
    both = (challenger, champion)
    ours, theirs = (runs_of(one.cells[task], one.predictions.get(task)) for one in both)
    value = statistics.fmean(challenger.cells[task].values) - statistics.fmean(champion.cells[task].values)
    row = (BENCHMARKS | challenger.custom).get(task) if all(one.predictions.get(task) for one in both) else None
    found = compare_runs(task, row, challenger.headline[task], ours, theirs, NUM_RESAMPLES)
    parts = []
    if found.seeds is not None:
        parts.append((found.seeds.error, found.seeds.degrees_of_freedom))
    if found.rows is not None:
        parts.append((found.rows.error, math.inf))
    return _Difference(value, *(combined_error(parts) if parts else (None, math.inf)))


def _average(
    differences: Mapping[str, _Difference], settings: PromotionSettings
) -> tuple[Rule, float | None, float | None]:
    """Return the rule, the difference and its lower limit."""
    if not differences:
        return Rule("average", False, "not compared"), None, None
    count = len(differences)
    value = statistics.fmean(one.value for one in differences.values())
    unknown = [task for task, one in differences.items() if one.error is None]
    if unknown:
        said = f"the variation is unknown on {', '.join(unknown)}: fine-tune with two seeds or more"
        return Rule("average", False, f"{value:+.2f} points; {said}"), value, None
    error, freedom = combined_error(
        (one.error / count, one.freedom) for one in differences.values() if one.error is not None
    )
    low = value - t_quantile(settings.confidence, freedom) * error
    passed = low >= -settings.margin
    said = f"{value:+.2f} points over {count} tasks, at {settings.confidence:.0%} no less than {low:+.2f}"
    allowed = f"{-settings.margin:+.2f} is allowed" if settings.margin else "it must not be below 0"
    return Rule("average", passed, f"{said}; {allowed}"), value, low


def _not_fallen(task: str, found: _Difference | None, settings: PromotionSettings) -> Rule:
    name = f"{task} must not fall"
    if found is None:
        return Rule(name, False, "not compared with the champion's")
    high = found.limits(settings.confidence)["high"]
    if high is None:
        return Rule(name, False, f"{found.value:+.2f} points; its variation is unknown: fine-tune with two seeds")
    fallen = found.value < 0 and high < 0
    said = f"at {settings.confidence:.0%} no more than {high:+.2f}" if fallen else "not significantly lower"
    return Rule(name, not fallen, f"{found.value:+.2f} points, {said}")


def _collapses_no_more_often(challenger: Candidate, champion: Candidate, settings: PromotionSettings) -> Rule:
    """Refuse a challenger whose seeds collapse more often than the champion's: on one task more than `max_collapse` of
    them, or over all tasks significantly (Fisher's exact test, one-sided)."""
    from scipy.stats import fisher_exact  # takes a second to import

    tasks = sorted((challenger.cells.keys() & champion.cells.keys()) - set(settings.may_be_degenerate))
    faults = []
    for task in tasks:
        ours, theirs = challenger.cells[task], champion.cells[task]
        if ours.num_degenerate / ours.num_runs > max(settings.max_collapse, theirs.num_degenerate / theirs.num_runs):
            faults.append(f"{ours.num_degenerate} of {ours.num_runs} seeds are degenerate on {task}")
    systems = [[one.cells[task] for task in tasks] for one in (challenger, champion)]
    collapsed = [sum(cell.num_degenerate for cell in cells) for cells in systems]
    totals = [sum(cell.num_runs for cell in cells) for cells in systems]
    table = [[count, total - count] for count, total in zip(collapsed, totals)]
    p = float(fisher_exact(table, alternative="greater").pvalue)
    said = (
        f"{collapsed[0]} of {totals[0]} runs are degenerate, {collapsed[1]} of {totals[1]} of the champion's"
        f" (p = {p:.2g})"
    )
    if p < 1 - settings.confidence:
        faults.append(said)
    return Rule("collapse rate", not faults, "; ".join(faults) or said)


def _not_degenerate(challenger: Candidate, settings: PromotionSettings) -> Rule:
    found = [
        task
        for task, cell in challenger.cells.items()
        if cell.all_degenerate and task not in settings.may_be_degenerate
    ]
    said = f"{len(challenger.cells)} tasks learned something, or need not"
    if found:
        said = f"every run gave one answer to all rows of {', '.join(found)}"
    return Rule("no degenerate task", not found, said)


def candidate_of(project: Project, record: RunRecord, encoder: str, card_faults: list[str]) -> Candidate:
    """Create a candidate from a system of a leaderboard, with predictions from the history or build/finetune.

    Raises:
        UserError: the leaderboard has no system of that name.
    """
    system = record.system(encoder)
    if system is None:
        there = ", ".join(one.name for one in record.systems)
        raise UserError(f"leaderboard {record.digest}: no scores of an encoder '{encoder}'; available: {there}")
    inputs, home = Inputs(project.build / "finetune"), project.leaderboards
    predictions = {
        task: history.read_predictions(home, system, task) or inputs.predictions_of(system, task)
        for task in system.cells
    }
    return Candidate(
        name=encoder,
        digest=system.digest,
        cells=system.cells,
        headline={task: metric for task, metric in record.headline.items() if task in system.cells},
        predictions={task: found for task, found in predictions.items() if found},
        custom=record.custom,
        card_faults=tuple(card_faults),
    )


def write_candidate(candidate: Candidate, folder: Path) -> None:
    """Write a candidate to `folder`/evaluation; equal candidates give equal bytes.

    A version contains its scores and dev predictions, so any machine can compare a challenger with the champion.
    """
    write_json(folder / EVALUATION / _SCORES, candidate.content())
    for place, (task, runs) in enumerate(sorted(candidate.predictions.items())):
        rows = [[{key: row[key] for key in history.KEPT if key in row} for row in run] for run in runs]
        kept = json.dumps({"task": task, "runs": rows}, ensure_ascii=False, sort_keys=True)
        write_bytes(folder / EVALUATION / f"predictions-{place:03}.json.gz", gzip.compress(kept.encode(), mtime=0))


def read_candidate(folder: Path) -> Candidate:
    """Read a candidate written by `write_candidate`.

    Raises:
        UserError: the candidate is missing or damaged.
    """
    path = folder / EVALUATION / _SCORES
    if not path.is_file():
        raise UserError(f"{path}: missing; this version was not registered by Cloze")
    predictions = {}
    try:
        candidate = Candidate.parse(read_json(path), str(path))
        for path in sorted((folder / EVALUATION).glob("predictions-*.json.gz")):
            content = json.loads(gzip.decompress(path.read_bytes()))
            predictions[content["task"]] = content["runs"]
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path}: damaged ({error}); register the encoder again") from None
    return candidate.model_copy(update={"predictions": predictions})
