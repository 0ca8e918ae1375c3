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
    assert metrics.accuracy(gold, predicted) == pytest.approx(100 * sklearn.metrics.accuracy_score(gold, predicted))
    assert metrics.matthews(gold, predicted) == pytest.approx(100 * sklearn.metrics.matthews_corrcoef(gold, predicted))
    expected = sklearn.metrics.f1_score(gold == 1, predicted == 1)
    assert metrics.f1(gold, predicted, positive=1) == pytest.approx(100 * expected)


def test_predictions_of_one_class_score_zero_where_nothing_can_be_said() -> None:
    gold, constant = np.array([0, 1, 1, 0]), np.zeros(4, dtype=np.int64)
    assert metrics.matthews(gold, constant) == 0.0
    assert metrics.matthews(constant, gold) == 0.0
    assert metrics.f1(gold, constant, positive=1) == 0.0
    assert metrics.f1(constant, constant, positive=1) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_correlations_agree_with_scipy_with_ties(seed: int) -> None:
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, 6, 300) / 2.0  # many ties
    predicted = np.round(gold + generator.normal(0, 2, 300), int(seed % 3))
    assert metrics.pearson(gold, predicted) == pytest.approx(100 * scipy.stats.pearsonr(gold, predicted)[0])
    assert metrics.spearman(gold, predicted) == pytest.approx(100 * scipy.stats.spearmanr(gold, predicted)[0])


def test_a_constant_correlates_with_nothing() -> None:
    gold = np.array([1.0, 2.0, 4.0])
    for constant in (np.full(3, 2.7), np.zeros(3)):
        assert metrics.pearson(gold, constant) == 0.0
        assert metrics.spearman(gold, constant) == 0.0
