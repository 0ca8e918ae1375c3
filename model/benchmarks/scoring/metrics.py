"""GLUE's metrics, from 0 to 100. What a metric cannot be computed for (a constant prediction) scores 0.

They agree with scikit-learn and scipy, which tests hold; importing those would cost a worker a second.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


def accuracy(gold: Labels, predicted: Labels) -> float:
    """The share of equal entries."""
    return 100.0 * float(np.mean(gold == predicted))


def f1(gold: Labels, predicted: Labels, positive: int) -> float:
    """F1 of the class `positive`."""
    num_correct = int(np.sum((gold == positive) & (predicted == positive)))
    num_either = int(np.sum(gold == positive)) + int(np.sum(predicted == positive))
    return 200.0 * num_correct / num_either if num_either else 0.0


def macro_f1(gold: Labels, predicted: Labels, num_classes: int) -> float:
    """The mean of the F1 of each class that occurs in `gold` or `predicted`."""
    there = [label for label in range(num_classes) if np.any(gold == label) or np.any(predicted == label)]
    return sum(f1(gold, predicted, label) for label in there) / len(there)


def matthews(gold: Labels, predicted: Labels) -> float:
    """Matthews correlation, for any number of classes (Gorodkin 2004)."""
    num_classes = int(max(gold.max(), predicted.max())) + 1
    confusion = np.bincount(gold * num_classes + predicted, minlength=num_classes**2).reshape(num_classes, -1)
    of_gold, of_predicted = [[int(count) for count in confusion.sum(axis)] for axis in (1, 0)]
    total, correct = len(gold), int(np.trace(confusion))
    covariance = correct * total - sum(a * b for a, b in zip(of_gold, of_predicted))
    spread = (total**2 - sum(a * a for a in of_gold)) * (total**2 - sum(b * b for b in of_predicted))
    return 100.0 * covariance / math.sqrt(spread) if spread else 0.0


def pearson(gold: Scores, predicted: Scores) -> float:
    """Pearson's correlation."""
    if np.ptp(gold) == 0.0 or np.ptp(predicted) == 0.0:
        return 0.0
    gold, predicted = gold - gold.mean(), predicted - predicted.mean()
    norm = math.sqrt(float(gold @ gold)) * math.sqrt(float(predicted @ predicted))
    return 100.0 * max(-1.0, min(1.0, float(gold @ predicted) / norm))


def spearman(gold: Scores, predicted: Scores) -> float:
    """Spearman's correlation: Pearson's of the ranks, equal values sharing their mean rank."""
    return pearson(_ranks(gold), _ranks(predicted))


def _ranks(values: Scores) -> Scores:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[inverse]
