"""The gate: whether a challenger may become the champion, with a reason for every rule.

A challenger has to be *shown* to be no worse, since a test that finds nothing may only have seen too little. On every
benchmark the difference of the two means has an error, from the spread of the seeds and from drawing other dev rows
(as far as each is known); the benchmarks' errors make that of the average. The lower limit of the average difference,
one-sided at `confidence`, must not lie below `-margin`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.benchmarks.table import BENCHMARKS, Benchmark
from tasks.leaderboard.comparisons import runs_of
from tasks.leaderboard.schema import CellRecord
from tasks.params.promotion import PromotionSettings
from tasks.stats.compare import combined_error, compare_runs, t_quantile
from tasks.stats.measures import Records

NUM_RESAMPLES = 2000  # of the dev rows: they give a standard error, to 2 per cent


@dataclass(frozen=True)
class Candidate:
    """An encoder as the gate sees it: its cells of the leaderboard, and what was predicted."""

    name: str
    """The system's name on the leaderboard."""
    digest: str
    """Names its fine-tuning jobs: systems of one digest are the same."""
    cells: Mapping[str, CellRecord]
    """benchmark → the cell."""
    headline: Mapping[str, str]
    """benchmark → the metric that `cells` hold the values of."""
    predictions: Mapping[str, Sequence[Records]] = field(default_factory=dict)
    """benchmark → the predictions of the cell's runs, a list per seed; those that are at hand."""
    rows: Mapping[str, Benchmark] = field(default_factory=dict)
    """The rows of own tasks."""
    card_faults: tuple[str, ...] = ()
    """What its model card does not say (`tasks.registry.model_card`)."""


@dataclass(frozen=True)
class Rule:
    """One rule of the gate, as it was judged."""

    name: str
    passed: bool
    reason: str


@dataclass(frozen=True)
class Verdict:
    """What the gate says."""

    challenger: str
    champion: str
    """Empty where there is none."""
    rules: tuple[Rule, ...]
    difference: float | None = None
    """Challenger minus champion: the mean over the benchmarks of both, in points."""
    low: float | None = None
    """Its lower limit."""
    tasks: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """benchmark → difference, error, and low and high, one-sided each; None where nothing is known of the error."""

    @property
    def promoted(self) -> bool:
        """Whether the challenger may become the champion: every rule lets it pass."""
        return all(rule.passed for rule in self.rules)

    @property
    def reason(self) -> str:
        """In one line: what refused it, or why it passed."""
        refused = [rule for rule in self.rules if not rule.passed]
        return "; ".join(f"{rule.name}: {rule.reason}" for rule in refused or self.rules)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "challenger": self.challenger,
            "champion": self.champion,
            "promoted": self.promoted,
            "reason": self.reason,
            "difference": self.difference,
            "low": self.low,
            "rules": [{"name": rule.name, "passed": rule.passed, "reason": rule.reason} for rule in self.rules],
            "tasks": {task: dict(values) for task, values in self.tasks.items()},
        }

    def markdown(self) -> str:
        """For a report, or Prefect's page."""
        against = f"against {self.champion}" if self.champion else "(there is no champion yet)"
        lines = [f"**{self.challenger}** {against}: **{'promoted' if self.promoted else 'refused'}**", ""]
        lines += ["| rule | | reason |", "|---|---|---|"]
        lines += [f"| {rule.name} | {'pass' if rule.passed else 'REFUSED'} | {rule.reason} |" for rule in self.rules]
        if self.tasks:
            lines += ["", "| task | difference | from | to |", "|---|---:|---:|---:|"]
            lines += [
                f"| {task} | {_points(one['difference'])} | {_points(one['low'])} | {_points(one['high'])} |"
                for task, one in self.tasks.items()
            ]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Difference:
    """Challenger minus champion on one benchmark; `freedom` belongs to the error."""

    value: float
    error: float | None
    freedom: float


def judge(challenger: Candidate, champion: Candidate | None, settings: PromotionSettings) -> Verdict:
    """Judge by all rules. Equal arguments give equal verdicts: the resampling has a fixed seed."""
    alone = [_not_degenerate(challenger, settings), _card(challenger)]
    if champion is None:
        first = Rule("average", bool(challenger.cells), "there is no champion yet to compare with")
        if not challenger.cells:
            first = Rule("average", False, "it has no score")
        return Verdict(challenger.name, "", (first, *alone))
    comparable = _comparable(challenger, champion)
    differences = {}
    if comparable.passed:
        differences = {task: _difference(task, challenger, champion) for task in champion.cells}
    average, difference, low = _average(differences, settings)
    rules = [_new(challenger, champion), comparable, average]
    rules += [_not_fallen(task, differences.get(task), settings) for task in settings.must_not_fall]
    tasks = {task: _limits(one, settings.confidence) for task, one in differences.items()}
    return Verdict(challenger.name, champion.name, (*rules, *alone), difference, low, tasks)


def _new(challenger: Candidate, champion: Candidate) -> Rule:
    same = challenger.digest == champion.digest
    return Rule("new", not same, "it is the champion itself" if same else "other fine-tuning jobs than the champion's")


def _comparable(challenger: Candidate, champion: Candidate) -> Rule:
    """All tasks of the champion, by the same metric, on the same dev rows."""
    faults = []
    for task, theirs in champion.cells.items():
        ours = challenger.cells.get(task)
        if ours is None:
            faults.append(f"the challenger has no score on {task}")
        elif challenger.headline[task] != champion.headline[task]:
            faults.append(f"{task} is judged by {challenger.headline[task]}, the champion by {champion.headline[task]}")
        elif (ours.dev_digest, ours.num_dev_rows) != (theirs.dev_digest, theirs.num_dev_rows):
            faults.append(f"{task} has other dev rows than the champion was judged on")
    said = "; ".join(faults) or f"the same {len(champion.cells)} tasks on the same dev rows"
    return Rule("comparable", not faults and bool(champion.cells), said if champion.cells else "no task to compare on")


def _difference(task: str, challenger: Candidate, champion: Candidate) -> _Difference:
    """On one benchmark, with the error that seeds and dev rows give it."""
    ours, theirs = challenger.cells[task], champion.cells[task]
    value = statistics.fmean(ours.values) - statistics.fmean(theirs.values)
    row = (BENCHMARKS | dict(challenger.rows)).get(task)
    predictions = [one.predictions.get(task) for one in (challenger, champion)]
    found = compare_runs(
        task,
        row if predictions[0] and predictions[1] else None,
        challenger.headline[task],
        runs_of(ours, predictions[0]),
        runs_of(theirs, predictions[1]),
        NUM_RESAMPLES,
    )
    parts = []
    if found.seeds is not None:
        parts.append((found.seeds.error, found.seeds.degrees_of_freedom))
    if found.rows is not None:
        parts.append((found.rows.error, math.inf))
    if not parts:
        return _Difference(value, None, math.inf)
    return _Difference(value, *combined_error(parts))


def _limits(one: _Difference, confidence: float) -> dict[str, float | None]:
    if one.error is None:
        return {"difference": one.value, "error": None, "low": None, "high": None}
    half = t_quantile(confidence, one.freedom) * one.error
    return {"difference": one.value, "error": one.error, "low": one.value - half, "high": one.value + half}


def _average(
    differences: Mapping[str, _Difference], settings: PromotionSettings
) -> tuple[Rule, float | None, float | None]:
    """The rule of the average, the difference and its lower limit."""
    if not differences:
        return Rule("average", False, "not compared"), None, None
    count = len(differences)
    value = statistics.fmean(one.value for one in differences.values())
    unknown = [task for task, one in differences.items() if one.error is None]
    if unknown:
        said = f"nothing is known of the noise on {', '.join(unknown)}: fine-tune with two seeds or more"
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
    limits = _limits(found, settings.confidence)
    if limits["high"] is None:
        return Rule(name, False, f"{found.value:+.2f} points; nothing is known of its noise: fine-tune with two seeds")
    fallen = found.value < 0 and limits["high"] < 0
    said = f"at {settings.confidence:.0%} no more than {limits['high']:+.2f}" if fallen else "not significantly lower"
    return Rule(name, not fallen, f"{found.value:+.2f} points, {said}")


def _not_degenerate(challenger: Candidate, settings: PromotionSettings) -> Rule:
    """No task on which every run gave one answer to all rows."""
    found = [
        task
        for task, cell in challenger.cells.items()
        if cell.all_degenerate and task not in settings.may_be_degenerate
    ]
    if found:
        return Rule("no degenerate task", False, f"every run gave one answer to all rows of {', '.join(found)}")
    return Rule("no degenerate task", True, f"{len(challenger.cells)} tasks learned something, or need not")


def _card(challenger: Candidate) -> Rule:
    faults = challenger.card_faults
    return Rule("card is complete", not faults, "; ".join(faults) or "nothing is missing")


def _points(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.2f}"
