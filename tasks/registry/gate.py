"""The promotion gate: decide whether a challenger may become the champion, with a reason for every rule.

A challenger must be *shown* to be no worse than the best champion ever, because a test on too little data finds no
difference, and losses against the latest champion would add up. On each benchmark, the difference of the two means has
a standard error, from the variation over seeds and (if known) over dev rows. The errors of the benchmarks are combined
into that of the average. The one-sided lower limit of the average difference must not be below `-margin`.

Every decision on the same dev rows is a look, and a wrong promotion in any of them is an error. Each of the planned
`looks` therefore gets an equal share of the error rate, 1 - `confidence` (Bonferroni's inequality).
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from model.benchmarks.table import BENCHMARKS, Benchmark
from model.common.errors import UserError
from model.common.files import digest_of, read_json, write_bytes, write_json
from tasks.leaderboard import history
from tasks.leaderboard.comparisons import runs_of
from tasks.leaderboard.inputs import Inputs
from tasks.leaderboard.schema import CellRecord, FileModel, RunRecord, rounded
from tasks.params.root import PromotionSettings
from tasks.project.project import Project
from tasks.stats.compare import SeedTest, combined_error, compare_runs, t_quantile

NUM_RESAMPLES = 2000  # determine a standard error to within 2 percent
EVALUATION = "evaluation"
_SCORES = "scores.json"
_HOW_TO_COMPARE = (
    "measure `best` again, or make the challenger `best` with --force (docs/registry.md, New dev rows or other tasks)"
)


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
class Look:
    """A decision of the gate among all decisions on the same dev rows."""

    number: int
    """Counts different pairs of challenger and `best` from 1; the same pair again is the same look."""
    pair: str
    """Identifies challenger and `best`."""
    rows: tuple[str, ...]
    """Identifies the dev rows of each benchmark. Looks that share the rows of any benchmark are counted together."""
    planned: int
    """Number of looks that share the error rate."""
    alpha: float
    """Error rate of this look: the greatest probability that it promotes an encoder that is worse by more than the
    margin."""
    spent: float
    """Error rate of all looks so far together."""
    budget: float
    """Error rate of all planned looks together."""

    def __str__(self) -> str:
        said = f"look {self.number} of {self.planned} on these dev rows: error rate {self.alpha:.2g}"
        if self.spent > self.budget * (1 + 1e-9):
            return f"{said}; all looks together reach {self.spent:.2g} instead of {self.budget:.2g}: use new dev rows"
        return f"{said}, spent {self.spent:.2g} of {self.budget:.2g}, left {max(0.0, self.budget - self.spent):.2g}"


@dataclass(frozen=True)
class Change:
    """Difference of the champion's average from an earlier version, in points."""

    version: str
    since: str
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    """Why the two are not compared."""

    def __str__(self) -> str:
        said = f"change of {self.version} since {self.since}: "
        if self.difference is None:
            return f"{said}not compared ({self.reason})"
        limits = "interval unknown" if self.low is None else f"{self.low:+.2f} to {self.high:+.2f}"
        return f"{said}{self.difference:+.2f} points ({limits})"


@dataclass(frozen=True)
class Verdict:
    """Decision of the gate."""

    challenger: str
    best: str
    """Name of the best champion ever, which the challenger is compared with; empty before the first champion."""
    difference: float | None
    """Challenger minus `best` in points: the mean over their common benchmarks."""
    low: float | None
    """One-sided lower limit of the difference, at the confidence that this look may use."""
    rules: tuple[Rule, ...]
    tasks: Mapping[str, Mapping[str, float | None]]
    """benchmark → difference, error, and one-sided limits low and high; None if the error is unknown"""
    look: Look | None = None
    """None if nothing was compared."""
    changes: tuple[Change, ...] = ()
    """Cumulative change of the champion after this decision."""

    @property
    def promoted(self) -> bool:
        return all(rule.passed for rule in self.rules)

    @property
    def summary(self) -> tuple[str, ...]:
        """Return the look and the cumulative changes as lines."""
        return tuple(str(one) for one in (self.look, *self.changes) if one is not None)

    @property
    def moves_best(self) -> bool:
        """Whether a promotion makes the challenger the best champion ever: it is the first one, it is significantly
        better, or `best` has no scores on the challenger's dev rows (then only a forced promotion is possible)."""
        return self.look is None or (self.low is not None and self.low > 0)

    @property
    def reason(self) -> str:
        """Return the rules that failed, or the reasons of all rules if it passed, in one line."""
        refused = [rule for rule in self.rules if not rule.passed]
        return "; ".join(f"{rule.name}: {rule.reason}" for rule in refused or self.rules)

    def record(self) -> dict[str, Any]:
        head = {"challenger": self.challenger, "best": self.best}
        tasks = {
            task: {name: None if value is None else rounded(value) for name, value in one.items()}
            for task, one in self.tasks.items()
        }
        content = dataclasses.asdict(self) | {"tasks": tasks}
        return {**head, "promoted": self.promoted, "reason": self.reason, **content}


@dataclass(frozen=True)
class Difference:
    """Challenger minus `best` on one benchmark, with standard error and degrees of freedom."""

    value: float
    error: float | None
    freedom: float

    @classmethod
    def of(cls, value: float, seeds: SeedTest | None, row_error: float | None) -> Difference:
        """Combine the errors over seeds and over dev rows, as far as each is known."""
        parts = [] if seeds is None else [(seeds.error, seeds.degrees_of_freedom)]
        parts += [] if row_error is None else [(row_error, math.inf)]
        return cls(value, *(combined_error(parts) if parts else (None, math.inf)))

    def limits(self, confidence: float) -> dict[str, float | None]:
        if self.error is None:
            return {"difference": self.value, "error": None, "low": None, "high": None}
        half = t_quantile(confidence, self.freedom) * self.error
        return {"difference": self.value, "error": self.error, "low": self.value - half, "high": self.value + half}


def judge(
    challenger: Candidate,
    best: Candidate | None,
    settings: PromotionSettings,
    looks: Sequence[Look] = (),
    champion: Candidate | None = None,
) -> Verdict:
    """Evaluate all rules. Equal arguments give equal verdicts, because resampling uses a fixed seed.

    Args:
        best: the best champion ever; None if there is no champion yet.
        looks: all earlier looks, oldest first.
        champion: the latest champion, if it is not `best`.
    """
    compared = best is not None and _comparable(challenger, best).passed
    differences = measure_differences(challenger, best) if best is not None and compared else {}
    return decide(challenger, best, differences, settings, looks, champion)


def decide(
    challenger: Candidate,
    best: Candidate | None,
    differences: Mapping[str, Difference],
    settings: PromotionSettings,
    looks: Sequence[Look] = (),
    champion: Candidate | None = None,
) -> Verdict:
    """Evaluate all rules, as `judge` does, on differences that are already measured."""
    faults = challenger.card_faults
    card = Rule("card is complete", not faults, "; ".join(faults) or "nothing is missing")
    alone = [_not_degenerate(challenger, settings), card]
    if best is None:
        said = "there is no champion yet to compare with" if challenger.cells else "it has no score"
        first = Rule("average", bool(challenger.cells), said)
        return Verdict(challenger.name, "", None, None, (first, *alone), {})
    is_new = challenger.digest != (champion or best).digest
    said = "other fine-tuning jobs than the champion's" if is_new else "it is the champion itself"
    look = look_at(challenger, best, settings, looks) if differences else None
    average, difference, low = _average(differences, settings, look)
    rules = [Rule("new", is_new, said), _comparable(challenger, best), average]
    rules += [_not_fallen(task, differences.get(task), settings) for task in settings.must_not_fall]
    rules.append(_collapses_no_more_often(challenger, best, settings))
    tasks = {task: one.limits(settings.confidence) for task, one in differences.items()}
    return Verdict(challenger.name, best.name, difference, low, (*rules, *alone), tasks, look)


def look_at(challenger: Candidate, best: Candidate, settings: PromotionSettings, looks: Sequence[Look]) -> Look:
    """Count the look at two comparable candidates after the earlier `looks`, and the error rate that is spent."""
    rows = tuple(digest_of([task, *cell.dev_rows])[:8] for task, cell in sorted(best.cells.items()))
    pair = digest_of([challenger.digest, best.digest])[:16]
    budget = 1 - settings.confidence
    alpha = budget / settings.looks
    spent = {look.pair: look.alpha for look in looks if not set(rows).isdisjoint(look.rows)} | {pair: alpha}
    return Look([*spent].index(pair) + 1, pair, rows, settings.looks, alpha, sum(spent.values()), budget)


def change_since(
    version: str, since: str, current: Candidate, earlier: Candidate, settings: PromotionSettings
) -> Change:
    """Compare the averages of two candidates, with one-sided limits at `confidence`."""
    if not _comparable(current, earlier).passed:
        faults = _differences_in_kind(current, earlier)
        return Change(version, since, reason="; ".join(faults) or "no task to compare on")
    average = _mean_difference(measure_differences(current, earlier))
    limits = average.limits(settings.confidence)
    return Change(version, since, average.value, limits["low"], limits["high"])


def _comparable(challenger: Candidate, best: Candidate) -> Rule:
    """Require all benchmarks of `best`, with the same metric on the same dev rows."""
    faults = _differences_in_kind(challenger, best)
    said = "; ".join(
        [*faults, _HOW_TO_COMPARE] if faults else [f"the same {len(best.cells)} tasks on the same dev rows"]
    )
    if added := sorted(challenger.cells.keys() - best.cells.keys()):
        said += f"; {', '.join(added)} not compared, because `best` has no score"
    return Rule("comparable", not faults and bool(best.cells), said if best.cells else "no task to compare on")


def _differences_in_kind(challenger: Candidate, best: Candidate) -> list[str]:
    """List why scores of the two cannot be compared."""
    lacking = [task for task in best.cells if task not in challenger.cells]
    faults = [f"the challenger has no score on {', '.join(lacking)}"] if lacking else []
    for task, theirs in best.cells.items():
        ours = challenger.cells.get(task)
        if ours is None:
            continue
        if challenger.headline[task] != best.headline[task]:
            faults.append(f"{task} is scored by {challenger.headline[task]}, `best` by {best.headline[task]}")
        elif ours.dev_rows != theirs.dev_rows:
            faults.append(f"{task} has other dev rows than `best` was scored on")
    return faults


def measure_differences(
    challenger: Candidate, best: Candidate, num_resamples: int = NUM_RESAMPLES
) -> dict[str, Difference]:
    """Measure the difference on every benchmark of `best` from the scores and, if known, the predictions."""
    found = {}
    for task in best.cells:
        ours, theirs = (runs_of(one.cells[task], one.predictions.get(task)) for one in (challenger, best))
        known = challenger.predictions.get(task) and best.predictions.get(task)
        row = (BENCHMARKS | challenger.custom).get(task) if known else None
        compared = compare_runs(task, row, challenger.headline[task], ours, theirs, num_resamples)
        value = statistics.fmean(challenger.cells[task].values) - statistics.fmean(best.cells[task].values)
        found[task] = Difference.of(value, compared.seeds, None if compared.rows is None else compared.rows.error)
    return found


def _mean_difference(differences: Mapping[str, Difference]) -> Difference:
    """Average over benchmarks; the error is unknown if that of any benchmark is."""
    count = len(differences)
    value = statistics.fmean(one.value for one in differences.values())
    errors = [(one.error / count, one.freedom) for one in differences.values() if one.error is not None]
    return Difference(value, *(combined_error(errors) if len(errors) == count else (None, math.inf)))


def _average(
    differences: Mapping[str, Difference], settings: PromotionSettings, look: Look | None
) -> tuple[Rule, float | None, float | None]:
    """Return the rule, the difference and its lower limit."""
    if look is None:
        return Rule("average", False, "not compared"), None, None
    average = _mean_difference(differences)
    low = average.limits(1 - look.alpha)["low"]
    if low is None:
        unknown = ", ".join(task for task, one in differences.items() if one.error is None)
        said = f"the variation is unknown on {unknown}: fine-tune with two seeds or more"
        return Rule("average", False, f"{average.value:+.2f} points; {said}"), average.value, None
    said = f"{average.value:+.2f} points over {len(differences)} tasks, at {100 * (1 - look.alpha):.4g}% (look"
    said += f" {look.number} of {settings.looks}) no less than {low:+.2f}"
    allowed = f"{-settings.margin:+.2f} is allowed" if settings.margin else "it must not be below 0"
    return Rule("average", low >= -settings.margin, f"{said}; {allowed}"), average.value, low


def _not_fallen(task: str, found: Difference | None, settings: PromotionSettings) -> Rule:
    name = f"{task} must not fall"
    if found is None:
        return Rule(name, False, "not compared with `best`")
    high = found.limits(settings.confidence)["high"]
    if high is None:
        return Rule(name, False, f"{found.value:+.2f} points; its variation is unknown: fine-tune with two seeds")
    fallen = found.value < 0 and high < 0
    said = f"at {settings.confidence:.0%} no more than {high:+.2f}" if fallen else "not significantly lower"
    return Rule(name, not fallen, f"{found.value:+.2f} points, {said}")


def _collapses_no_more_often(challenger: Candidate, best: Candidate, settings: PromotionSettings) -> Rule:
    """Refuse a challenger whose seeds collapse more often than those of `best`: on one task more than `max_collapse` of
    them, or over all tasks significantly (Fisher's exact test, one-sided)."""
    tasks = sorted((challenger.cells.keys() & best.cells.keys()) - set(settings.may_be_degenerate))
    if not tasks:
        return Rule("collapse rate", True, "no common task to compare on")
    faults = []
    for task in tasks:
        ours, theirs = challenger.cells[task], best.cells[task]
        if ours.num_degenerate / ours.num_runs > max(settings.max_collapse, theirs.num_degenerate / theirs.num_runs):
            faults.append(f"{ours.num_degenerate} of {ours.num_runs} seeds are degenerate on {task}")
    systems = [[one.cells[task] for task in tasks] for one in (challenger, best)]
    collapsed = [sum(cell.num_degenerate for cell in cells) for cells in systems]
    totals = [sum(cell.num_runs for cell in cells) for cells in systems]
    table = [[count, total - count] for count, total in zip(collapsed, totals)]
    p = 1.0
    if collapsed[0]:
        from scipy.stats import fisher_exact  # takes a second to import

        p = float(fisher_exact(table, alternative="greater").pvalue)
    said = (
        f"{collapsed[0]} of {totals[0]} runs are degenerate, {collapsed[1]} of {totals[1]} of those of `best`"
        f" (p = {p:.2g})"
    )
    if p < 1 - settings.confidence:
        faults.append(said)
    return Rule("collapse rate", not faults, "; ".join(faults) or said)


def _not_degenerate(challenger: Candidate, settings: PromotionSettings) -> Rule:
    degenerate = [task for task, cell in challenger.cells.items() if cell.all_degenerate]
    found = [task for task in degenerate if task not in settings.may_be_degenerate]
    num_others = len(challenger.cells) - len(degenerate)
    said = f"the answers differ between rows on {num_others} of {len(challenger.cells)} tasks"
    if degenerate:
        said += f"; promotion.may_be_degenerate accepts one answer for {', '.join(degenerate)}"
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
