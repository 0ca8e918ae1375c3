"""Metrics from per-row counts, and tests over dev rows beside scipy's and beside chance."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.scoring import metrics, squad_scores
from model.benchmarks.scoring.entities import entity_scores
from model.benchmarks.table import BENCHMARKS, Benchmark
from model.common.errors import UserError
from tasks.stats.compare import paired_bootstrap, randomization_test
from tasks.stats.measures import SumMeasure, measure_of
from tests.processor_time import check_processor_time

Record = dict[str, Any]
ROWS = 120
LOOPS = 200  # resamples that are drawn and scored row by row
THREE = BENCHMARKS["mnli"].model_copy(update={"metrics": ("matthews",)})
PEARSON = BENCHMARKS["stsb"]


def classes(row: Benchmark, seed: int, accuracy: float, num_rows: int = ROWS) -> list[Record]:
    """Predictions that are right with some chance; the gold labels are the same for every seed."""
    gold = np.random.default_rng(99).choice(row.labels, num_rows)
    generator = np.random.default_rng(seed)
    found = np.where(generator.random(num_rows) < accuracy, gold, generator.choice(row.labels, num_rows))
    return [{"id": str(n), "prediction": str(p), "label": str(g)} for n, (g, p) in enumerate(zip(gold, found))]


def numbers(seed: int, noise: float, num_rows: int = ROWS, digits: int = 2) -> list[Record]:
    """Predicted scores with noise, some equal."""
    gold = np.round(np.random.default_rng(98).uniform(0, 5, num_rows), 1)
    found = np.round(gold + np.random.default_rng(seed).normal(0, noise, num_rows), digits)
    return [{"id": str(n), "prediction": p, "label": g} for n, (g, p) in enumerate(zip(gold.tolist(), found.tolist()))]


def spans(row: Benchmark, seed: int, num_rows: int = ROWS) -> list[Record]:
    """Answers of a few words."""
    gold, generator = np.random.default_rng(97), np.random.default_rng(seed)
    words = ["cat", "dog", "the", "red"]
    records = []
    for number in range(num_rows):
        answers = [" ".join(gold.choice(words, 2)) for _ in range(gold.integers(1, 3))]
        label = [] if row.unanswerable and gold.random() < 0.3 else answers
        prediction = "" if generator.random() < 0.2 else " ".join(generator.choice(words, 2))
        records.append({"id": str(number), "prediction": prediction, "label": label})
    return records


def tags(seed: int, num_rows: int = ROWS) -> list[Record]:
    """Sentences of random tags, most of them predicted."""
    gold, generator = np.random.default_rng(96), np.random.default_rng(seed)
    records = []
    for number in range(num_rows):
        label = gold.choice(BENCHMARKS["ner"].labels, 6)
        found = np.where(generator.random(6) < 0.7, label, generator.choice(BENCHMARKS["ner"].labels, 6))
        records.append({"id": str(number), "prediction": found.tolist(), "label": label.tolist()})
    return records


def score(row: Benchmark, metric: str, records: list[Record]) -> float:
    """The metric as jobs report it."""
    gold, found = ([record[name] for record in records] for name in ("label", "prediction"))
    if row.head == "span":
        return squad_scores.scores_of(found, gold, row.unanswerable)[metric]
    if row.head == "tags" and metric == "accuracy":
        return 100 * float(np.mean(np.array(gold) == np.array(found)))
    if row.head == "tags":
        return entity_scores(gold, found)[metric]
    if row.head == "regression":
        return metrics.CORRELATIONS[metric](np.array(gold), np.array(found))
    if metric == "macro_f1":
        return 100 * sklearn.metrics.f1_score(gold, found, average="macro")
    first, second = (np.array([row.labels.index(label) for label in labels]) for labels in (gold, found))
    positive = row.labels.index(row.positive) if row.positive else None
    return metrics.label_scores((metric,), first, second, len(row.labels), positive)[metric]


SYSTEMS: list[tuple[Benchmark, str, Callable[[int], list[Record]]]] = [
    (BENCHMARKS["sst2"], "accuracy", lambda seed: classes(BENCHMARKS["sst2"], seed, 0.7)),
    (BENCHMARKS["mrpc"], "f1", lambda seed: classes(BENCHMARKS["mrpc"], seed, 0.6)),
    (BENCHMARKS["cola"], "matthews", lambda seed: classes(BENCHMARKS["cola"], seed, 0.6)),
    (THREE, "matthews", lambda seed: classes(THREE, seed, 0.6)),
    (THREE, "macro_f1", lambda seed: classes(THREE, seed, 0.6)),
    (PEARSON, "pearson", lambda seed: numbers(seed, 2.0)),
    (PEARSON, "spearman", lambda seed: numbers(seed, 2.0, digits=0)),
    (BENCHMARKS["squad1"], "f1", lambda seed: spans(BENCHMARKS["squad1"], seed)),
    (BENCHMARKS["squad2"], "f1", lambda seed: spans(BENCHMARKS["squad2"], seed)),
    (BENCHMARKS["squad2"], "exact", lambda seed: spans(BENCHMARKS["squad2"], seed)),
    (BENCHMARKS["ner"], "f1", tags),
    (BENCHMARKS["ner"], "precision", tags),
    (BENCHMARKS["ner"], "recall", tags),
    (BENCHMARKS["ner"], "accuracy", tags),
]
every_system = pytest.mark.parametrize(("row", "metric", "make"), SYSTEMS)


@every_system
def test_metrics_from_counts_are_those_that_jobs_report(
    row: Benchmark, metric: str, make: Callable[[int], list[Record]]
) -> None:
    runs = [make(seed) for seed in range(5)]
    first, second = measure_of(row, metric, runs[:3], runs[3:]).whole()
    assert first == pytest.approx(np.mean([score(row, metric, run) for run in runs[:3]]))
    assert second == pytest.approx(np.mean([score(row, metric, run) for run in runs[3:]]))


@every_system
def test_resamples_are_those_that_plain_loops_give(
    row: Benchmark, metric: str, make: Callable[[int], list[Record]]
) -> None:
    """Quantiles of 4,000 resamples beside some that are drawn and scored row by row."""
    first, second = make(1), make(2)
    generator = np.random.default_rng(5)
    slow = []
    for _ in range(LOOPS):
        rows = generator.integers(0, ROWS, ROWS)
        slow.append(score(row, metric, [first[n] for n in rows]) - score(row, metric, [second[n] for n in rows]))
    found = measure_of(row, metric, [first], [second]).resampled(np.random.default_rng(1), 4000)
    fast = found[0] - found[1]
    error = np.std(slow) * (1 / LOOPS + 1 / 4000) ** 0.5
    assert np.mean(fast) == pytest.approx(np.mean(slow), abs=4 * error)
    assert np.std(fast) == pytest.approx(np.std(slow), rel=4 * (2 * LOOPS) ** -0.5)


@every_system
def test_exchanges_are_those_that_plain_loops_give(
    row: Benchmark, metric: str, make: Callable[[int], list[Record]]
) -> None:
    first, second = make(1), make(2)
    generator = np.random.default_rng(6)
    slow = []
    for _ in range(LOOPS):
        pairs = [(b, a) if swap else (a, b) for a, b, swap in zip(first, second, generator.random(ROWS) < 0.5)]
        slow.append(score(row, metric, [a for a, _ in pairs]) - score(row, metric, [b for _, b in pairs]))
    found = measure_of(row, metric, [first], [second]).exchanged(np.random.default_rng(2), 4000)
    fast = found[0] - found[1]
    assert np.mean(fast) == pytest.approx(0.0, abs=4 * np.std(fast) / 4000**0.5)
    assert np.std(fast) == pytest.approx(np.std(slow), rel=4 * (2 * LOOPS) ** -0.5)


@pytest.mark.parametrize("few_patterns", [True, False])
def test_the_interval_is_scipys(few_patterns: bool) -> None:
    generator = np.random.default_rng(3)
    values = generator.random((2, 300))
    if few_patterns:
        values = np.round(values)
    values[0] += 0.1
    measure = SumMeasure(values[:1, :, None], values[1:, :, None], HEAD_SPECS["classes"].formula("accuracy"))
    found = paired_bootstrap(measure, 20_000)
    expected = scipy.stats.bootstrap(
        (values[0], values[1]),
        lambda a, b, axis: 100 * (a.mean(axis) - b.mean(axis)),
        paired=True,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(1),
    )
    # A quantile at 2.5 % of 20,000 draws errs by 2 % of a deviation; here are two such.
    tolerance = 0.1 * expected.standard_error
    assert found.low == pytest.approx(expected.confidence_interval.low, abs=tolerance)
    assert found.high == pytest.approx(expected.confidence_interval.high, abs=tolerance)
    whole = measure.whole()
    assert whole[0] - whole[1] == pytest.approx(100 * (values[0].mean() - values[1].mean()))


@pytest.mark.parametrize("lead", [0.0, 0.02, 0.05])
def test_the_randomization_p_is_scipys(lead: float) -> None:
    generator = np.random.default_rng(4)
    values = generator.random((2, 300)) + np.array([[lead], [0.0]])
    measure = SumMeasure(values[:1, :, None], values[1:, :, None], HEAD_SPECS["classes"].formula("accuracy"))
    expected = scipy.stats.permutation_test(
        (values[0], values[1]),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    )
    error = (expected.pvalue * (1 - expected.pvalue) / 20_000) ** 0.5
    assert randomization_test(measure, 20_000) == pytest.approx(expected.pvalue, abs=max(6 * error, 5e-4))


def test_intervals_hold_the_truth_as_often_as_they_say_and_p_values_err_as_seldom() -> None:
    """600 worlds in which 70 % and 60 % of answers are right: 95 ± 0.9 % of intervals hold 10 points."""
    generator = np.random.default_rng(7)
    covered = rejected = 0
    plain = HEAD_SPECS["classes"].formula("accuracy")
    for world in range(600):
        hard = generator.random(250)  # of a row, for both systems, so that they are correlated
        first, second, twin = (
            ((0.5 * hard + 0.5 * generator.random(250)) < _threshold(share)).astype(float)[None, :, None]
            for share in (0.7, 0.6, 0.7)
        )
        interval = paired_bootstrap(SumMeasure(first, second, plain), 1000, world)
        covered += interval.low <= 10.0 <= interval.high
        rejected += randomization_test(SumMeasure(first, twin, plain), 1000, world) < 0.05
    assert 0.92 <= covered / 600 <= 0.975
    assert rejected / 600 <= 0.05 + 3 * 0.0089


def _threshold(share: float) -> float:
    """Below it lies `share` of the mean of two uniform numbers (a triangle over 0 to 1)."""
    return 1 - ((1 - share) / 2) ** 0.5


@pytest.mark.parametrize(("metric", "truth"), [("matthews", 40.0), ("f1", 10.0)])
def test_intervals_of_metrics_that_are_no_means_hold_the_truth(metric: str, truth: float) -> None:
    """400 worlds; the second system guesses. Matthews of answers right with chance q among two equal classes is
    2 q - 1; F1 of the positive class is q."""
    generator = np.random.default_rng(8)
    row = BENCHMARKS["mrpc"]
    covered = 0
    for world in range(400):
        gold = generator.random(300) < 0.5
        records = []
        for share in (0.7, 0.5) if metric == "matthews" else (0.7, 0.6):
            found = np.where(generator.random(300) < share, gold, ~gold)
            records.append(
                [
                    {"id": n, "label": str(int(g)), "prediction": str(int(p))}
                    for n, (g, p) in enumerate(zip(gold, found))
                ]
            )
        interval = paired_bootstrap(measure_of(row, metric, records[:1], records[1:]), 500, world)
        covered += interval.low <= truth <= interval.high
    assert 0.91 <= covered / 400 <= 0.98


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_intervals_of_correlations_hold_the_truth(metric: str) -> None:
    """200 worlds of two normal variables, whose rank correlation is 6 / π arcsin(ρ / 2)."""
    generator = np.random.default_rng(9)
    rhos = (0.8, 0.6)
    truths = rhos if metric == "pearson" else [6 / math.pi * math.asin(rho / 2) for rho in rhos]
    covered = 0
    for world in range(200):
        gold = generator.normal(size=150)
        found = [rho * gold + math.sqrt(1 - rho * rho) * generator.normal(size=150) for rho in rhos]
        records = [
            [{"id": n, "label": g, "prediction": p} for n, (g, p) in enumerate(zip(gold.tolist(), run.tolist()))]
            for run in found
        ]
        interval = paired_bootstrap(measure_of(PEARSON, metric, records[:1], records[1:]), 400, world)
        covered += interval.low <= 100 * (truths[0] - truths[1]) <= interval.high
    assert 0.9 <= covered / 200 <= 0.99


def test_parts_are_resampled_by_themselves() -> None:
    row = BENCHMARKS["mnli"]
    runs = []
    for seed in (1, 2):
        matched, mismatched = classes(row, seed, 0.8, 100), classes(row, seed + 10, 0.5, 300)
        runs.append(
            [{**one, "part": part} for part, half in (("matched", matched), ("mismatched", mismatched)) for one in half]
        )
    measure = measure_of(row, "accuracy", runs[:1], runs[1:])
    expected = np.mean([score(row, "accuracy", half) for half in (runs[0][:100], runs[0][100:])])
    assert measure.whole()[0] == pytest.approx(expected)
    assert measure.num_rows == 400
    interval, whole = paired_bootstrap(measure, 2000), measure.whole()
    assert interval.low < whole[0] - whole[1] < interval.high
    assert 0 < randomization_test(measure, 2000) <= 1


def test_equal_systems_do_not_differ_and_a_seed_gives_the_same_numbers() -> None:
    row = BENCHMARKS["mrpc"]
    run = classes(row, 1, 0.7)
    same = measure_of(row, "f1", [run], [run])
    assert randomization_test(same, 500) == 1.0
    assert paired_bootstrap(same, 500) == dataclasses.replace(paired_bootstrap(same, 500), low=0.0, high=0.0, p=1.0)
    other = measure_of(row, "f1", [run], [classes(row, 2, 0.7)])
    assert paired_bootstrap(other, 500, seed=3) == paired_bootstrap(other, 500, seed=3)
    assert paired_bootstrap(other, 500, seed=3) != paired_bootstrap(other, 500, seed=4)


def test_degenerate_runs_score_zero_in_every_resample() -> None:
    row = BENCHMARKS["cola"]
    constant = [{**record, "prediction": "1"} for record in classes(row, 1, 0.7)]
    first, _ = measure_of(row, "matthews", [constant], [constant]).resampled(np.random.default_rng(0), 100)
    assert (first == 0.0).all()
    flat = [{**record, "prediction": 2.7} for record in numbers(1, 1.0)]
    for metric in ("pearson", "spearman"):
        first, _ = measure_of(PEARSON, metric, [flat], [flat]).resampled(np.random.default_rng(0), 100)
        assert np.abs(first).max() == 0.0


def test_ten_thousand_resamples_of_the_whole_squad_take_seconds() -> None:
    generator = np.random.default_rng(0)
    values = np.round(generator.random((2, 10_570)) * 12) / 12
    measure = SumMeasure(values[:1, :, None], values[1:, :, None], HEAD_SPECS["classes"].formula("accuracy"))
    start = time.process_time()
    paired_bootstrap(measure)
    randomization_test(measure)
    check_processor_time(time.process_time() - start, 10)


def test_runs_on_other_rows_are_refused() -> None:
    row = BENCHMARKS["sst2"]
    run = classes(row, 1, 0.7)
    for other, message in (
        (run[:-1], "120 rows in one run, 119 in another"),
        ([run[1], run[0], *run[2:]], "row 0 differs"),
    ):
        with pytest.raises(UserError, match=message):
            measure_of(row, "accuracy", [run], [other])
