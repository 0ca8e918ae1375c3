"""GLUE's metrics against scikit-learn and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from model.benchmarks.scoring import metrics


@pytest.mark.parametrize("seed", range(20))
def test_classes_agree_with_scikit_learn(seed: int) -> None:
    generator = np.random.default_rng(seed)
    num_classes = int(generator.integers(2, 5))
    gold = generator.integers(0, num_classes, 200)
    predicted = np.where(generator.random(200) < 0.5, gold, generator.integers(0, num_classes, 200))
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(gold, predicted),
        "matthews": sklearn.metrics.matthews_corrcoef(gold, predicted),
        "f1": sklearn.metrics.f1_score(gold == 1, predicted == 1),
        "macro_f1": sklearn.metrics.f1_score(gold, predicted, average="macro"),
    }
    found = metrics.label_scores(tuple(expected), gold, predicted, num_classes, positive=1)
    assert found == pytest.approx({name: 100 * value for name, value in expected.items()})


def test_predictions_of_one_class_score_zero_where_nothing_can_be_said() -> None:
    gold, constant = np.array([0, 1, 1, 0]), np.zeros(4, dtype=np.int64)
    for first, second in ((gold, constant), (constant, gold), (constant, constant)):
        assert metrics.label_scores(("matthews", "f1"), first, second, 2, positive=1) == {"matthews": 0.0, "f1": 0.0}


@pytest.mark.parametrize("seed", range(20))
def test_correlations_agree_with_scipy_with_ties(seed: int) -> None:
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, 6, 300) / 2.0  # many ties
    predicted = np.round(gold + generator.normal(0, 2, 300), int(seed % 3))
    assert metrics.pearson_of(gold, predicted) == pytest.approx(100 * scipy.stats.pearsonr(gold, predicted)[0])
    assert metrics.spearman_of(gold, predicted) == pytest.approx(100 * scipy.stats.spearmanr(gold, predicted)[0])


def test_a_constant_correlates_with_nothing() -> None:
    gold = np.array([1.0, 2.0, 4.0])
    for constant in (np.full(3, 2.7), np.zeros(3)):
        assert metrics.pearson_of(gold, constant) == 0.0
        assert metrics.spearman_of(gold, constant) == 0.0


def test_formulas_accept_leading_dimensions() -> None:
    """A batch of bootstrap resamples is scored as each resample alone."""
    generator = np.random.default_rng(0)
    confusions = generator.integers(0, 30, (2, 5, 3, 3))
    gold, predicted = generator.normal(0, 1, (2, 5, 40)), generator.normal(0, 1, (2, 5, 40))
    sums = metrics.moments(gold, predicted).sum(axis=-2)
    weights = generator.integers(0, 3, (2, 5, 40)).astype(np.float64)
    values = generator.integers(0, 9, 40) / 2.0
    ranked = metrics.ranks(values, weights)
    for at in np.ndindex(2, 5):
        assert metrics.macro_f1(confusions)[at] == metrics.macro_f1(confusions[at])
        assert metrics.matthews(confusions)[at] == metrics.matthews(confusions[at])
        assert metrics.pearson(sums, 40)[at] == pytest.approx(metrics.pearson_of(gold[at], predicted[at]))
        expected = scipy.stats.rankdata(np.repeat(values, weights[at].astype(int)))
        assert np.repeat(ranked[at], weights[at].astype(int)) == pytest.approx(expected)
