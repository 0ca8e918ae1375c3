"""The metrics of GLUE and CoNLL as formulas over sufficient statistics, from 0 to 100.

The statistics are counts, confusion matrices and moments that are summed over rows. Every formula accepts arrays with
any leading dimensions, so that one call scores one evaluation or thousands of bootstrap resamples. A score that is
undefined, such as the correlation of a constant, is 0, as on the GLUE server. The formulas agree with scikit-learn and
scipy, which take a second to import.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.number]
Floats = npt.NDArray[np.float64]
Formula = Callable[[Floats, int], Floats]
"""Computes a metric, (...), 0 to 100, from sums over rows, (..., counts), and the number of rows."""

_CONSTANT = 1e-9  # a spread below this share of the second moment is a rounding error of a constant


def percent(part: npt.ArrayLike, whole: npt.ArrayLike) -> Floats:
    """Compute 100 * part / whole, or 0 where `whole` is not positive."""
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    shape = np.broadcast_shapes(part.shape, whole.shape)
    return np.divide(100.0 * part, whole, out=np.zeros(shape), where=whole > 0)


def f1(num_correct: npt.ArrayLike, num_predicted: npt.ArrayLike, num_gold: npt.ArrayLike) -> Floats:
    """Compute F1 from the numbers of true positives, predicted positives and actual positives."""
    return percent(2 * np.asarray(num_correct), np.asarray(num_predicted) + np.asarray(num_gold))


def confusion_matrix(gold: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], num_classes: int) -> Array:
    """Count label pairs, (classes, classes): gold labels in rows, predictions in columns."""
    return np.bincount(gold * num_classes + predicted, minlength=num_classes**2).reshape(num_classes, -1)


def macro_f1(confusion: Array) -> Floats:
    """Compute mean F1 over the classes in gold labels or predictions, from matrices (..., classes, classes)."""
    gold, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    scores = f1(np.diagonal(confusion, axis1=-2, axis2=-1), predicted, gold)
    total: Floats = np.cumsum(scores, axis=-1)[..., -1]  # in order, so that the last digit does not depend on shapes
    return total / (gold + predicted > 0).sum(axis=-1)


def matthews(confusion: Array) -> Floats:
    """Compute the multi-class Matthews correlation (Gorodkin 2004) from matrices (..., classes, classes)."""
    confusion = confusion.astype(np.float64)
    gold, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    num_rows, num_correct = gold.sum(axis=-1), np.trace(confusion, axis1=-2, axis2=-1)
    covariance = num_correct * num_rows - (gold * predicted).sum(axis=-1)
    spread = (num_rows**2 - (gold**2).sum(axis=-1)) * (num_rows**2 - (predicted**2).sum(axis=-1))
    return percent(covariance, np.sqrt(np.maximum(spread, 0.0)))


def moments(gold: Floats, predicted: Floats) -> Floats:
    """Compute each row's contribution to the sums that `pearson` reads, (..., 5).

    The sums lose precision unless both arguments are centered, at least approximately.
    """
    return np.stack([gold, predicted, gold * gold, predicted * predicted, gold * predicted], axis=-1)


def pearson(sums: Floats, num_rows: npt.ArrayLike) -> Floats:
    """Compute the Pearson correlation from summed `moments`, (..., 5), over `num_rows` rows."""
    gold, predicted, gold_squared, predicted_squared, product = np.moveaxis(sums, -1, 0)
    norm = np.ones_like(product)
    for total, square in ((gold, gold_squared), (predicted, predicted_squared)):
        spread = square - total * total / num_rows
        norm = norm * np.sqrt(np.where(spread > _CONSTANT * square, spread, 0.0))
    covariance = product - gold * predicted / num_rows
    correlation = np.divide(covariance, norm, out=np.zeros_like(covariance), where=norm > 0)
    return 100.0 * np.clip(correlation, -1.0, 1.0)


def ranks(values: Floats, weights: Floats) -> Floats:
    """Rank of each value, (rows,), in samples that hold value i `weights[..., i]` times; equal values share their mean
    rank."""
    distinct, group_of = np.unique(values, return_inverse=True)
    order = np.argsort(group_of, kind="stable")
    begins = np.searchsorted(group_of[order], np.arange(len(distinct)))
    counts = np.add.reduceat(weights[..., order], begins, axis=-1)
    found: Floats = (np.cumsum(counts, axis=-1) - (counts - 1) / 2)[..., group_of]
    return found


def pearson_of(gold: Floats, predicted: Floats) -> float:
    """Compute the Pearson correlation of two arrays, (rows,)."""
    gold, predicted = gold - gold.mean(), predicted - predicted.mean()
    sums = [gold.sum(), predicted.sum(), gold @ gold, predicted @ predicted, gold @ predicted]
    return float(pearson(np.array(sums), len(gold)))


def spearman_of(gold: Floats, predicted: Floats) -> float:
    """Compute the Spearman correlation of two arrays, (rows,): the Pearson correlation of their ranks."""
    once = np.ones(len(gold))
    return pearson_of(ranks(gold, once), ranks(predicted, once))


CORRELATIONS: dict[str, Callable[[Floats, Floats], float]] = {"pearson": pearson_of, "spearman": spearman_of}


def label_scores(
    names: tuple[str, ...],
    gold: npt.NDArray[np.int64],
    predicted: npt.NDArray[np.int64],
    num_classes: int,
    positive: int | None,
) -> dict[str, float]:
    """Compute the metrics `names` from label numbers, (rows,) each; "f1" scores the label `positive`."""
    confusion = confusion_matrix(gold, predicted, num_classes)
    scores: dict[str, Callable[[], Floats]] = {
        "accuracy": lambda: 100.0 * (gold == predicted).mean(),
        "f1": lambda: f1(confusion[positive, positive], confusion[:, positive].sum(), confusion[positive].sum()),
        "macro_f1": lambda: macro_f1(confusion),
        "matthews": lambda: matthews(confusion),
    }
    return {name: float(scores[name]()) for name in names}


def mean_percent(sums: Floats, num_rows: int) -> Floats:
    """Compute the mean over rows of a single count, as a percentage."""
    return 100.0 * sums[..., 0] / num_rows


def _square(sums: Floats) -> Floats:
    """Reshape summed counts to confusion matrices, (..., gold, predicted)."""
    num_classes = round(sums.shape[-1] ** 0.5)
    return sums.reshape(*sums.shape[:-1], num_classes, num_classes)


SUM_FORMULAS: dict[str, Formula] = {
    "precision": lambda sums, _: percent(sums[..., 0], sums[..., 1]),
    "recall": lambda sums, _: percent(sums[..., 0], sums[..., 2]),
    "f1": lambda sums, _: f1(sums[..., 0], sums[..., 1], sums[..., 2]),
    "macro_f1": lambda sums, _: macro_f1(_square(sums)),
    "matthews": lambda sums, _: matthews(_square(sums)),
    "pearson": pearson,
}
"""Formulas over summed row counts: correct, predicted and gold for f1; else confusion matrices and moments."""
