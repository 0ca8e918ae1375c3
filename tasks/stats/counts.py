"""Per-row counts of a run's predictions, and the formulas that make metrics of their sums.

They give what `model.benchmarks` reports for the whole dev set, which tests hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from model.benchmarks.scoring.entities import entities
from model.benchmarks.scoring.squad_scores import question_scores
from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from tasks.stats.measures import Floats, Formula, MeanMeasure, Measure, RankMeasure, SumMeasure

Records = Sequence[Mapping[str, Any]]
"""The rows of a run's predictions.jsonl."""


def measure_of(row: Benchmark, metric: str, first: Sequence[Records], second: Sequence[Records]) -> Measure:
    """The metric (one of the row's, without a part's suffix) of two systems, each with one or more runs.

    Raises:
        UserError: the runs were not judged on the same rows.
    """
    runs = [*first, *second]
    _check_same_rows(row, runs)
    places: dict[str, list[int]] = {}
    for place, record in enumerate(runs[0]):
        places.setdefault(str(record.get("part", "")), []).append(place)
    parts = []
    for part in places.values():
        cut = [[run[place] for place in part] for run in runs]
        parts.append(_measure(row, metric, cut[: len(first)], cut[len(first) :]))
    return parts[0] if len(parts) == 1 else MeanMeasure(parts)


def _measure(row: Benchmark, metric: str, first: Sequence[Records], second: Sequence[Records]) -> Measure:
    if metric == "spearman":
        gold = np.array([record["label"] for record in first[0]], dtype=np.float64)
        predicted = [
            np.array([[record["prediction"] for record in run] for run in runs], dtype=np.float64)
            for runs in (first, second)
        ]
        return RankMeasure(gold, *predicted)
    counted = [np.stack([counts(row, metric, run) for run in runs]) for runs in (first, second)]
    return SumMeasure(counted[0], counted[1], formula(row, metric))


def counts(row: Benchmark, metric: str, records: Records) -> Floats:
    """What each row adds to the sums that `formula` reads, (rows, counts)."""
    values: list[Any]
    if row.head == "span":
        column = ("exact", "f1").index(metric)
        values = [[question_scores(one["prediction"], one["label"], row.unanswerable)[column]] for one in records]
    elif row.head == "tags" and metric == "accuracy":
        values = [_right_words(record) for record in records]
    elif row.head == "tags":
        values = [_entity_counts(record) for record in records]
    elif row.head == "regression":
        values = _moments(records)
    elif metric in ("matthews", "macro_f1"):
        values = _confusion(row, records)
    elif metric == "f1":
        positive = row.positive
        found = [(record["label"] == positive, record["prediction"] == positive) for record in records]
        values = [[gold and predicted, predicted, gold] for gold, predicted in found]
    else:
        values = [[record["label"] == record["prediction"]] for record in records]
    return np.array(values, dtype=np.float64)


def formula(row: Benchmark, metric: str) -> Formula:
    """The metric as a function of sums of `counts`."""
    if row.head == "tags":
        return {"f1": _f1, "precision": _precision, "recall": _recall, "accuracy": _precision}[metric]
    if row.head == "span" or metric == "accuracy":
        return lambda sums, num_rows: 100.0 * sums[..., 0] / num_rows
    return {"f1": _f1, "macro_f1": _macro_f1, "matthews": _matthews, "pearson": _pearson}[metric]


def _right_words(record: Mapping[str, Any]) -> list[int]:
    words = list(zip(record["label"], record["prediction"], strict=True))
    return [sum(gold == predicted for gold, predicted in words), len(words)]


def _entity_counts(record: Mapping[str, Any]) -> list[int]:
    gold, predicted = set(entities(record["label"])), set(entities(record["prediction"]))
    return [len(gold & predicted), len(predicted), len(gold)]


def _moments(records: Records) -> list[list[float]]:
    """Gold, prediction, their squares and product, from the gold scores' mean, so that sums lose no digits."""
    middle = float(np.mean([record["label"] for record in records]))
    pairs = [(record["label"] - middle, record["prediction"] - middle) for record in records]
    return [[gold, predicted, gold * gold, predicted * predicted, gold * predicted] for gold, predicted in pairs]


def _confusion(row: Benchmark, records: Records) -> list[list[int]]:
    number = {label: place for place, label in enumerate(row.labels)}
    cells = [number[record["label"]] * len(number) + number[record["prediction"]] for record in records]
    return np.eye(len(number) ** 2, dtype=np.int64)[cells].tolist()


def _f1(sums: Floats, _num_rows: int) -> Floats:
    return _share(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def _precision(sums: Floats, _num_rows: int) -> Floats:
    return _share(sums[..., 0], sums[..., 1])


def _recall(sums: Floats, _num_rows: int) -> Floats:
    return _share(sums[..., 0], sums[..., 2])


def _macro_f1(sums: Floats, _num_rows: int) -> Floats:
    """The mean F1 of the classes that occur."""
    confusion = _square(sums)
    gold, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    there = gold + predicted
    scores = _share(2 * np.diagonal(confusion, axis1=-2, axis2=-1), there)
    mean: Floats = scores.sum(axis=-1) / (there > 0).sum(axis=-1)
    return mean


def _square(sums: Floats) -> Floats:
    """The confusion matrix, (..., gold, predicted)."""
    num_classes = round(sums.shape[-1] ** 0.5)
    return sums.reshape(*sums.shape[:-1], num_classes, num_classes)


def _matthews(sums: Floats, num_rows: int) -> Floats:
    confusion = _square(sums)
    gold, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    correct = np.trace(confusion, axis1=-2, axis2=-1)
    covariance = correct * num_rows - (gold * predicted).sum(axis=-1)
    spread = (num_rows**2 - (gold**2).sum(axis=-1)) * (num_rows**2 - (predicted**2).sum(axis=-1))
    return _share(covariance, np.sqrt(np.maximum(spread, 0.0)))


def _pearson(sums: Floats, num_rows: int) -> Floats:
    gold, predicted, gold_squared, predicted_squared, product = np.moveaxis(sums, -1, 0)
    spreads = [
        np.where(spread > 1e-9 * square, spread, 0.0)  # less is what rounding leaves of a constant
        for square, total in ((gold_squared, gold), (predicted_squared, predicted))
        for spread in [square - total * total / num_rows]
    ]
    return np.clip(_share(product - gold * predicted / num_rows, np.sqrt(spreads[0] * spreads[1])), -100.0, 100.0)


def _share(part: Floats, whole: Floats) -> Floats:
    """part / whole, 0 to 100; 0 where whole is 0."""
    return 100.0 * np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _check_same_rows(row: Benchmark, runs: Sequence[Records]) -> None:
    wanted = [(record["id"], record.get("part"), record["label"]) for record in runs[0]]
    for run in runs[1:]:
        found = [(record["id"], record.get("part"), record["label"]) for record in run]
        if found == wanted:
            continue
        if len(found) != len(wanted):
            what = f"{len(wanted)} rows in one run, {len(found)} in another"
        else:
            what = f"row {next(place for place, pair in enumerate(zip(wanted, found)) if pair[0] != pair[1])} differs"
        raise UserError(f"{row.name}: runs were judged on different dev rows ({what}); run the finetune stage again")
