"""Tests over seeds beside scipy's, Holm's correction, and the verdict on two encoders."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from model.common.files import write_json
from tasks.leaderboard.compare_two import compare_sides, encoder_side
from tasks.stats.compare import Comparison, Run, compare_runs, correct, half_interval, holm, seed_test
from tests.tasks.stats.test_measures import Record, classes

SST2 = BENCHMARKS["sst2"]


@pytest.mark.parametrize("seed", range(5))
def test_equal_seeds_are_paired_as_scipy_pairs_them(seed: int) -> None:
    first, second = np.random.default_rng(seed).normal(80, 2, (2, 6))
    found = seed_test(dict(enumerate(first)), dict(enumerate(second)))
    expected = scipy.stats.ttest_rel(first, second)
    assert found is not None and found.test == "paired"
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert found.degrees_of_freedom == expected.df


@pytest.mark.parametrize("seed", range(5))
def test_different_seeds_are_welchs(seed: int) -> None:
    generator = np.random.default_rng(seed)
    first, second = generator.normal(80, 1, 4), generator.normal(79, 4, 7)
    found = seed_test(dict(enumerate(first)), dict(enumerate(second)))
    expected = scipy.stats.ttest_ind(first, second, equal_var=False)
    assert found is not None and found.test == "welch"
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_one_seed_tells_nothing_and_no_spread_little() -> None:
    assert seed_test({1: 80.0}, {1: 70.0}) is None
    assert seed_test({1: 80.0, 2: 81.0}, {1: 70.0}) is None
    constant = seed_test({1: 80.0, 2: 81.0, 3: 82.0}, {1: 70.0, 2: 71.0, 3: 72.0})
    assert constant is not None
    assert (constant.difference, constant.low, constant.p) == (10.0, 10.0, 0.25)
    same = seed_test({1: 80.0, 2: 80.0}, {3: 80.0, 4: 80.0})
    assert same is not None
    assert same.p == 1.0
    apart = seed_test({1: 80.0, 2: 80.0}, {3: 70.0, 4: 70.0})
    assert apart is not None
    assert apart.p == pytest.approx(2 / 6)


def test_the_interval_between_halves_covers_their_true_difference() -> None:
    """Accuracies of 80 % on both halves: 95 % of the intervals hold 0, up to three standard errors of 300 draws."""
    covered = 0
    for seed in range(300):
        generator = np.random.default_rng(seed)
        halves = []
        for num_rows in (150, 250):
            found = ["1" if wrong else "0" for wrong in generator.random(num_rows) < 0.2]
            halves.append([[{"id": str(row), "prediction": one, "label": "0"} for row, one in enumerate(found)]])
        low, high = half_interval(SST2, "accuracy", halves[0], halves[1], 400)
        covered += low <= 0 <= high
    assert covered / 300 == pytest.approx(0.95, abs=3 * (0.95 * 0.05 / 300) ** 0.5)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_keeps_the_chance_of_any_false_claim() -> None:
    generator = np.random.default_rng(0)
    false = [min(holm(generator.random(10).tolist())) < 0.05 for _ in range(2000)]
    assert np.mean(false) <= 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5
    assert np.mean(false) > 0.03


def runs(accuracy: float, seeds: list[int], offset: int = 0) -> list[Run]:
    found = []
    for seed in seeds:
        records = classes(SST2, seed + offset, accuracy, 400)
        score = 100 * np.mean([record["label"] == record["prediction"] for record in records])
        found.append(Run(seed, float(score), records))
    return found


def test_a_claim_needs_rows_and_seeds() -> None:
    clear = compare_runs("sst2", SST2, "accuracy", runs(0.9, [1, 2, 3]), runs(0.4, [1, 2, 3], 50), 2000)
    assert clear.difference == pytest.approx(clear.first - clear.second)
    assert clear.rows is not None and clear.seeds is not None and clear.p is not None
    assert clear.rows.low > 0 and clear.seeds.low > 0
    assert clear.p == max(clear.rows.p, clear.seeds.p) < 0.05
    assert clear.rows.test == "randomisation"
    none = compare_runs("sst2", SST2, "accuracy", runs(0.6, [1, 2, 3]), runs(0.6, [1, 2, 3], 50), 2000)
    single = compare_runs("sst2", SST2, "accuracy", runs(0.4, [1]), runs(0.9, [1, 2], 50), 2000)
    assert single.seeds is None
    assert single.rows is not None
    assert single.rows.test == "bootstrap"
    verdicts = correct([clear, none, single])
    assert [verdict.better for verdict in verdicts] == ["first", None, "second"]
    assert verdicts[0].p_corrected is not None and verdicts[0].p_corrected >= clear.p


def publish(folder: Path, encoder: str, benchmark: str, found: list[Run]) -> None:
    """A published fine-tuning as the stage leaves it, with only what a comparison reads."""
    jobs = []
    for run in found:
        digest = f"{encoder}{run.seed}"
        jobs.append(
            {
                "digest": digest,
                "encoder": encoder,
                "benchmark": benchmark,
                "seed": run.seed,
                "recipe": {},
                "scores": {"accuracy": run.score},
                "headline": {"metric": "accuracy", "value": run.score},
                "num_train_rows": 10,
                "num_dev_rows": len(run.records),
            }
        )
        path = folder / encoder / benchmark / "jobs" / digest / "predictions.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in run.records))
    metrics = {"encoder": encoder, "kind": "pretrained", "benchmark": benchmark, "jobs": jobs}
    write_json(folder / encoder / benchmark / "metrics.json", metrics)


def test_encoders_from_the_published_build(tmp_path: Path) -> None:
    for benchmark in ("sst2", "rte"):
        labels = BENCHMARKS[benchmark].labels
        for encoder, accuracy, offset in (("good", 0.9, 0), ("bad", 0.4, 50)):
            found = runs(accuracy, [1, 2, 3], offset)
            renamed = [Run(one.seed, one.score, [_named(record, labels) for record in one.records]) for one in found]
            publish(tmp_path, encoder, benchmark, renamed)

    def compare(first: str, second: str, tasks: list[str]) -> list[Comparison]:
        found, reasons = compare_sides(encoder_side(tmp_path, first), encoder_side(tmp_path, second), tasks)
        assert not reasons
        return found

    both = compare("good", "bad", [])
    assert [one.benchmark for one in both] == ["sst2", "rte"]
    assert {one.better for one in both} == {"first"}
    [one] = compare("bad", "good", ["sst2"])
    assert (one.better, one.p_corrected) == ("second", one.p)
    with pytest.raises(UserError, match="no results of an encoder 'god'; did you mean 'good'"):
        compare("god", "bad", [])
    with pytest.raises(UserError, match="no common results on 'ner'; common benchmarks: sst2, rte"):
        compare("good", "bad", ["ner"])
    (tmp_path / "good" / "sst2" / "jobs" / "good1" / "predictions.jsonl").unlink()
    with pytest.raises(UserError, match="no such file; run `cloze finetune`"):
        compare("good", "bad", ["sst2"])


def _named(record: Record, labels: tuple[str, ...]) -> Record:
    return {name: labels[int(value)] if name != "id" else value for name, value in record.items()}


def pretrainings(generator: np.random.Generator, count: int, spread: float, rows: np.ndarray) -> list[Run]:
    """Runs of `count` pre-trainings with two fine-tunings each; the accuracy of a pre-training has a random shift."""
    found = []
    for pretrain_seed in range(count):
        shift = generator.normal(0, spread)
        for seed in (1, 2):
            right = generator.random(len(rows)) < np.clip(rows + shift, 0, 1)
            records = [
                {"id": str(row), "prediction": "0" if one else "1", "label": "0"} for row, one in enumerate(right)
            ]
            found.append(Run(seed, 100 * float(right.mean()), records, pretrain_seed))
    return found


@pytest.mark.parametrize("count", [3])
def test_equal_recipes_with_few_pretrainings_are_called_different_in_at_most_one_of_twenty(count: int) -> None:
    """Pre-trainings differ by 3 points, rows hardly: without the pre-training seed, most pairs seem to differ."""
    wrong = ignoring = 0
    num_trials = 150
    for trial in range(num_trials):
        generator = np.random.default_rng([count, trial])
        rows = generator.uniform(0.6, 1.0, 400)
        first, second = (pretrainings(generator, count, 0.03, rows) for _ in range(2))
        found = compare_runs("sst2", SST2, "accuracy", first, second, 400)
        assert found.pretraining is not None and found.rows is not None
        assert found.pretraining.num_pretrainings == (count, count)
        assert found.p is not None and found.p >= found.pretraining.p
        wrong += not found.pretraining.low <= 0 <= found.pretraining.high
        ignoring += not found.rows.low <= 0 <= found.rows.high
    tolerance = 3 * (0.05 * 0.95 / num_trials) ** 0.5
    assert wrong / num_trials <= 0.05 + tolerance
    assert ignoring / num_trials > 0.25, "the interval over rows ignores pre-training"


def test_shared_pretraining_seeds_are_drawn_together() -> None:
    """A difference that is the same for every seed has an interval over rows alone, however much the seeds differ."""
    rows = np.arange(300)

    def system(margin: int, pretrain_seeds: tuple[int, ...]) -> list[Run]:
        return [
            Run(
                1,
                0.0,
                [
                    {"id": str(row), "prediction": "0" if row < 150 + 40 * place + margin else "1", "label": "0"}
                    for row in rows
                ],
                pretrain_seed,
            )
            for place, pretrain_seed in enumerate(pretrain_seeds)
        ]

    first = system(20, (1, 2, 3))
    paired = compare_runs("sst2", SST2, "accuracy", first, system(0, (1, 2, 3))).pretraining
    apart = compare_runs("sst2", SST2, "accuracy", first, system(0, (4, 5, 6))).pretraining
    assert paired is not None and apart is not None
    assert (paired.paired, apart.paired) == (True, False)
    assert paired.low > 0 and paired.p < 0.01
    assert apart.low < 0 < apart.high


def test_one_pretraining_covers_none() -> None:
    generator = np.random.default_rng(0)
    rows = generator.uniform(0.6, 1.0, 50)
    first = pretrainings(generator, 3, 0.01, rows)
    single = [dataclasses.replace(run, pretrain_seed=None) for run in pretrainings(generator, 1, 0.01, rows)]
    found = compare_runs("sst2", SST2, "accuracy", first, single, 100)
    assert found.pretraining is None
    assert found.seeds is not None and found.seeds.test == "welch"
