"""Simulate years of weekly promotion gates, and measure losses and the chance of promotion.

The decisions are those of tasks/registry/gate.py itself. The scores follow a model of seven GLUE benchmarks: a row is
answered correctly if the sum of the encoder's quality, the effect of the fine-tuning seed, the row's difficulty (the
same for all encoders), and the encoder's and the run's luck with this row is positive. Years are simulated with scores
whose deviations were measured on such rows, and with the expected error over dev rows instead of the bootstrap's;
`agreement` compares both with the full computation. The peer is the gate as it was before `best`: the margin is
measured from the latest champion, at `confidence` in every decision.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from bench import comparison
from model.benchmarks.scoring import metrics
from model.benchmarks.table import BENCHMARKS
from tasks.params.root import PromotionSettings
from tasks.registry.gate import Candidate, Difference, Look, Verdict, decide, judge
from tasks.stats.compare import seed_test

Floats = npt.NDArray[np.float64]
WEEKS, YEARS, YEARS_OF_PEER = 52, 1000, 200
NUM_PAIRS, NUM_FULL_GATES = 1000, 30
SETTINGS = PromotionSettings()
# Shares of the variance of the latent variable. Two seeds then disagree on 13 % of RTE's rows and 5 % of SST-2's, two
# encoders on 20 % and 8 %.
DIFFICULTY, ENCODER_LUCK, RUN_LUCK = 0.75, 0.15, 0.10


@dataclass(frozen=True)
class Task:
    """A benchmark as the gate reads it: dev sets of 1,000 rows or more are halved (`finetune.judge_share`)."""

    name: str
    num_rows: int
    score: float
    positive: float
    """Share of rows with the label that f1 scores."""
    seed_effect: float
    """Standard deviation, in points, of the seed's effect on all rows alike."""

    @property
    def metric(self) -> str:
        return BENCHMARKS[self.name].metrics[0]

    def score_of(self, confusion: Floats) -> Floats:
        """Compute the metric from confusion matrices, (..., 2, 2), the positive label first."""
        if self.metric == "matthews":
            return metrics.matthews(confusion)
        if self.metric == "f1":
            predicted, gold = confusion.sum(axis=-2), confusion.sum(axis=-1)
            return metrics.f1(confusion[..., 0, 0], predicted[..., 0], gold[..., 0])
        return metrics.percent(np.trace(confusion, axis1=-2, axis2=-1), confusion.sum(axis=(-2, -1)))

    def latent(self, score: Floats) -> Floats:
        """Convert an expected score to the mean of the latent variable."""
        correct = np.linspace(0.5, 0.9999, 5000)
        shares = np.array([[self.positive], [1 - self.positive]])
        scores = self.score_of(_confusion(shares * correct, shares))
        return np.asarray(ndtri(np.interp(score, scores, correct)))


# Scores are about those of BERT base on dev. The scores of seeds deviate by 0.2 (QQP) to 2.1 points (CoLA), on RTE by
# 1.7 (`deviations`).
TASKS = (
    Task("cola", 522, 58.0, 0.69, 0.6),
    Task("sst2", 872, 92.5, 0.51, 0.1),
    Task("mrpc", 408, 89.0, 0.68, 0.5),
    Task("qqp", 20_215, 88.0, 0.37, 0.1),
    Task("mnli", 4_908, 84.0, 0.5, 0.2),
    Task("qnli", 2_732, 91.0, 0.5, 0.2),
    Task("rte", 277, 68.0, 0.53, 0.8),
)
LARGE = tuple(task for task in TASKS if task.name in ("qqp", "mnli", "qnli"))


def _confusion(num_correct: Floats, totals: Floats) -> Floats:
    """Make confusion matrices, (size, 2, 2), from the correct rows and all rows of each label, (2, size) and (2, 1)."""
    wrong = totals - num_correct
    return np.stack([num_correct[0], wrong[0], wrong[1], num_correct[1]], axis=-1).reshape(-1, 2, 2)


class DevSet:
    """The dev rows of a benchmark; encoders fine-tuned with several seeds answer them."""

    def __init__(self, task: Task, generator: np.random.Generator) -> None:
        self.task, self._generator = task, generator
        self.positive = generator.random(task.num_rows) < task.positive
        self._difficulty = math.sqrt(DIFFICULTY) * generator.standard_normal(task.num_rows)

    def answers(self, points: float, num_seeds: int) -> npt.NDArray[np.bool_]:
        """Draw which rows a new encoder answers correctly, (seeds, rows). It is better than average by `points`."""
        draw = self._generator.standard_normal
        scores = self.task.score + points + self.task.seed_effect * draw((num_seeds, 1))
        luck = math.sqrt(ENCODER_LUCK) * draw(self.task.num_rows)
        luck = luck + math.sqrt(RUN_LUCK) * draw((num_seeds, self.task.num_rows))
        return self.task.latent(scores) + self._difficulty + luck > 0

    def scores(self, answers: npt.NDArray[np.bool_]) -> Floats:
        """Compute the scores by seed."""
        labels = np.stack([self.positive, ~self.positive]).astype(float)
        return self.task.score_of(_confusion(labels @ answers.T, labels.sum(axis=1, keepdims=True)))

    def records(self, answers: npt.NDArray[np.bool_]) -> list[list[dict[str, Any]]]:
        row = BENCHMARKS[self.task.name]
        positive = row.positive or row.labels[0]
        names = [positive, next(label for label in row.labels if label != positive)]
        gold = (~self.positive).astype(int)
        predicted = np.where(answers, gold, 1 - gold)
        return [
            [{"id": n, "label": names[g], "prediction": names[p]} for n, (g, p) in enumerate(zip(gold, run))]
            for run in predicted
        ]


@dataclass(frozen=True)
class Deviations:
    """Standard deviations of a benchmark's score in points."""

    encoder: float
    """Luck of an encoder with the dev rows, the same for all seeds."""
    seed: float
    """Between seeds."""
    seed_rows: float
    """Part of `seed` that is luck with the dev rows."""

    def row_error(self, num_seeds: int) -> float:
        """Return the standard error over dev rows of the difference of two encoders, as the bootstrap finds it."""
        return math.sqrt(2 * (self.encoder**2 + self.seed_rows**2 / num_seeds))


@cache
def deviations(task: Task, num_dev_sets: int = 10, num_encoders: int = 30, num_seeds: int = 5) -> Deviations:
    """Measure the deviations on simulated rows, by analysis of variance."""
    generator = np.random.default_rng(1)
    between, within = [], []
    for _ in range(num_dev_sets):
        dev = DevSet(task, generator)
        scores = np.array([dev.scores(dev.answers(0.0, num_seeds)) for _ in range(num_encoders)])
        within.append(scores.var(axis=1, ddof=1).mean())
        between.append(scores.mean(axis=1).var(ddof=1))
    seed = float(np.mean(within))
    encoder = max(0.0, float(np.mean(between)) - seed / num_seeds)
    return Deviations(math.sqrt(encoder), math.sqrt(seed), math.sqrt(max(0.0, seed - task.seed_effect**2)))


def candidate(name: str, scores: dict[str, list[float]], collapsed: dict[str, int], **more: Any) -> Candidate:
    """Create a candidate with `scores` by benchmark; the first `collapsed` seeds of a benchmark are degenerate."""
    cells: dict[str, Any] = {}
    tasks = [task for task in TASKS if task.name in scores]
    for task in tasks:
        values, count = scores[task.name], collapsed.get(task.name, 0)
        one_answer = np.array([[task.positive, 0.0], [1 - task.positive, 0.0]])
        values = [float(task.score_of(one_answer))] * count + values[count:]
        cells[task.name] = SimpleNamespace(  # faster than a CellRecord
            seeds=range(len(values)),
            values=values,
            num_runs=len(values),
            num_degenerate=count,
            all_degenerate=count == len(values),
            dev_rows=(task.num_rows, task.name),
        )
    headline = {task.name: task.metric for task in tasks}
    return Candidate.model_construct(name=name, digest=name, cells=cells, headline=headline, **more)


@dataclass(frozen=True)
class Encoder:
    """A simulated encoder with its true average relative to the mean of all encoders, in points."""

    quality: float
    measured: Candidate


class Site:
    """Draws encoders and applies the gate to them."""

    def __init__(self, num_seeds: int, seed: int, tasks: tuple[Task, ...] = TASKS) -> None:
        self.num_seeds, self._tasks = num_seeds, tasks
        self._generator = np.random.default_rng([seed, num_seeds])
        self._deviations = {task.name: deviations(task) for task in tasks}
        self._num_encoders = 0

    def normal(self, deviation: float) -> float:
        return deviation * float(self._generator.standard_normal())

    def encoder(self, quality: float, collapse: bool = False) -> Encoder:
        """Draw the scores of an encoder; with `collapse`, two or more seeds are degenerate on some benchmarks."""
        self._num_encoders += 1
        noise = self._generator.standard_normal((len(self._tasks), 1 + self.num_seeds))
        scores = {}
        for task, (luck, *seeds) in zip(self._tasks, noise.tolist()):
            one = self._deviations[task.name]
            mean = task.score + quality + one.encoder * luck
            scores[task.name] = [mean + one.seed * value for value in seeds]
        collapsed = {}
        if collapse:
            chosen = self._generator.choice(len(self._tasks), self._generator.integers(1, 4), replace=False)
            collapsed = {self._tasks[one].name: int(self._generator.integers(2, self.num_seeds + 1)) for one in chosen}
        return Encoder(quality, candidate(str(self._num_encoders), scores, collapsed))

    def gate(
        self,
        challenger: Encoder,
        best: Encoder,
        settings: PromotionSettings = SETTINGS,
        looks: Sequence[Look] = (),
        champion: Encoder | None = None,
    ) -> Verdict:
        differences = {
            name: one_difference(challenger.measured, best.measured, name, one.row_error(self.num_seeds))
            for name, one in self._deviations.items()
        }
        latest = None if champion is None else champion.measured
        return decide(challenger.measured, best.measured, differences, settings, looks, latest)


def one_difference(challenger: Candidate, best: Candidate, task: str, row_error: float) -> Difference:
    ours, theirs = (dict(zip(one.cells[task].seeds, one.cells[task].values)) for one in (challenger, best))
    value = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    return Difference.of(value, seed_test(ours, theirs), row_error)


@dataclass(frozen=True)
class Rules:
    """A way to compare and to spend the error rate."""

    name: str
    latest: bool = False
    """Compare with the latest champion instead of `best`."""
    spending: str = "uniform"
    """uniform, none (the whole error rate in every look), or quadratic (6 / pi² k² in look k)."""
    moves: str = "significant"
    """When `best` moves: if the challenger is significantly better, or has a higher mean."""

    def settings(self, look: int) -> PromotionSettings:
        shares = {"uniform": SETTINGS.looks, "none": 1, "quadratic": math.pi**2 * look**2 / 6}
        return SETTINGS.model_copy(update={"looks": shares[self.spending]})

    def moved(self, verdict: Verdict) -> bool:
        assert verdict.difference is not None
        return self.latest or (verdict.moves_best if self.moves == "significant" else verdict.difference > 0)


NEW, OLD = Rules("best, uniform"), Rules("latest champion", latest=True, spending="none")
VARIANTS = (Rules("best, quadratic", spending="quadratic"), Rules("best, higher mean", moves="higher mean"))


@dataclass(frozen=True)
class Scenario:
    """The weekly challengers of a year."""

    name: str
    deviation: float = 0.0
    """Of the true average between pre-trainings."""
    from_champion: float | None = None
    """True difference from the latest champion, if it is constant."""
    from_best: float | None = None
    """True difference from `best`, if it is constant."""
    collapse: bool = False
    tasks: tuple[Task, ...] = TASKS
    seeds: tuple[int, ...] = (3, 5)


WITHIN, WRONG, PROMOTED = "years_within_margin", "years_with_wrong_promotion", "promotions_per_year"
SCENARIOS = (
    (Scenario("equal-0.3", deviation=0.3), WITHIN),
    (Scenario("equal-1", deviation=1.0), WITHIN),
    (Scenario("rot", from_champion=-0.3, seeds=(5,)), WITHIN),
    (Scenario("rot-large", from_champion=-0.3, tasks=LARGE, seeds=(5,)), WITHIN),
    (Scenario("worse-by-margin", from_best=-SETTINGS.margin), WRONG),
    (Scenario("collapse", from_best=2.0, collapse=True, seeds=(5,)), PROMOTED),
)


def year(site: Site, scenario: Scenario, rules: Rules) -> tuple[float, int, bool]:
    """Simulate a year of weekly gates; returns the loss of the champion's true average, the number of promotions, and
    whether a challenger was promoted that is truly worse than `best` by the margin or more."""
    champion = best = first = site.encoder(site.normal(scenario.deviation))
    looks: list[Look] = []
    num_promoted, wrong = 0, False
    for week in range(1, WEEKS + 1):
        quality = site.normal(scenario.deviation)
        if scenario.from_champion is not None:
            quality = champion.quality + scenario.from_champion
        elif scenario.from_best is not None:
            quality = best.quality + scenario.from_best
        challenger = site.encoder(quality, scenario.collapse)
        verdict = site.gate(challenger, best, rules.settings(week), looks, champion)
        assert verdict.look is not None and verdict.look.number == week
        looks.append(verdict.look)
        if verdict.promoted:
            num_promoted += 1
            wrong |= quality <= best.quality - SETTINGS.margin
            champion = challenger
            best = challenger if rules.moved(verdict) else best
    return first.quality - champion.quality, num_promoted, wrong


def years(scenario: Scenario, num_seeds: int, rules: Rules, num_years: int = YEARS) -> dict[str, float]:
    """Summarize simulated years."""
    site = Site(num_seeds, seed=2, tasks=scenario.tasks)
    losses, promoted, wrong = zip(*(year(site, scenario, rules) for _ in range(num_years)))
    return {
        WITHIN: float(np.mean(np.array(losses) <= SETTINGS.margin + 1e-9)),
        WRONG: float(np.mean(wrong)),
        PROMOTED: float(np.mean(promoted)),
        "mean_loss": float(np.mean(losses)),
        "loss_of_worst_twentieth": float(np.quantile(losses, 0.95)),
        "years": num_years,
    }


def power(points: float, num_seeds: int, rules: Rules, first_look: int = 1, num_gates: int = 4) -> list[float]:
    """Estimate the probability that a challenger truly better than `best` by `points` is promoted in one gate, and
    within `num_gates` gates, each with another challenger."""
    site = Site(num_seeds, seed=3)
    when = []
    for _ in range(NUM_PAIRS):
        best = site.encoder(0.0)
        verdicts = (site.gate(site.encoder(points), best, rules.settings(first_look + n)) for n in range(num_gates))
        when.append(next((n for n, verdict in enumerate(verdicts) if verdict.promoted), num_gates))
    return [float(np.mean(np.array(when) < count)) for count in (1, num_gates)]


def agreement(num_seeds: int, num_gates: int = NUM_FULL_GATES) -> dict[str, float]:
    """Compare decisions and limits with those of the bootstrap over simulated rows, on the same scores."""
    site, generator = Site(num_seeds, seed=4), np.random.default_rng([5, num_seeds])
    same, errors, gaps = [], [], []
    for number in range(num_gates):
        sets = [DevSet(task, generator) for task in TASKS]
        pair = []
        for name, points in (("challenger", float(number % 4)), ("best", 0.0)):
            answers = {dev.task.name: dev.answers(points, num_seeds) for dev in sets}
            scores = {dev.task.name: dev.scores(answers[dev.task.name]).tolist() for dev in sets}
            records = {dev.task.name: dev.records(answers[dev.task.name]) for dev in sets}
            pair.append(Encoder(points, candidate(name, scores, {}, predictions=records, custom={}, card_faults=())))
        full, fast = judge(pair[0].measured, pair[1].measured, SETTINGS), site.gate(pair[0], pair[1])
        assert full.low is not None and fast.low is not None and full.difference is not None
        same.append(full.promoted == fast.promoted)
        gaps.append(abs(full.low - fast.low))
        errors.append(full.difference - pair[0].quality)
    return {
        "gates": num_gates,
        "same_decision": float(np.mean(same)),
        "mean_gap_of_limits": float(np.mean(gaps)),
        "largest_gap_of_limits": float(np.max(gaps)),
        "deviation_of_difference": float(np.std(errors)),
    }


def results() -> Iterator[dict[str, Any]]:
    """Yield the agreement of the approximation, the years, and the probabilities of promotion."""
    for num_seeds in (3, 5):
        found = agreement(num_seeds)
        unit = "share of gates with the decision of the full computation"
        yield _result(f"agreement-{num_seeds}-seeds", found["same_decision"], 1.0, unit, found)
    for scenario, metric in SCENARIOS:
        for num_seeds in scenario.seeds:
            ours, peer = years(scenario, num_seeds, NEW), years(scenario, num_seeds, OLD, YEARS_OF_PEER)
            detail = {NEW.name: ours, OLD.name: peer}
            if num_seeds == 5 and scenario.name in ("equal-0.3", "equal-1", "worse-by-margin"):
                detail |= {rules.name: years(scenario, num_seeds, rules, YEARS_OF_PEER) for rules in VARIANTS}
            unit = metric.replace("_", " ")
            yield _result(f"{scenario.name}-{num_seeds}-seeds", ours[metric], peer[metric], unit, detail)
    for points in (0.0, 1.0, 2.0):
        for num_seeds in (3, 5):
            chances = {rules.name: power(points, num_seeds, rules) for rules in (NEW, OLD, VARIANTS[0])}
            later = VARIANTS[0], WEEKS // 2
            chances |= {f"{VARIANTS[0].name}, mid-year": power(points, num_seeds, *later)}
            unit = "probability of promotion in one gate"
            yield _result(
                f"promotion-{points:g}-{num_seeds}-seeds", chances[NEW.name][0], chances[OLD.name][0], unit, chances
            )


def _result(name: str, ours: float, peer: float, unit: str, detail: Any) -> dict[str, Any]:
    return comparison(f"gate-{name}", ours, peer, ours / peer if peer else math.nan, unit, detail)
