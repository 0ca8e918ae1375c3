"""Scores of a file of predictions against a gold file, for every benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model.benchmarks.readers.examples import Part
from model.benchmarks.readers.prediction_files import read_numbers, read_predictions
from model.benchmarks.readers.readers import read_dev
from model.benchmarks.scoring import squad, squad_scripts
from model.benchmarks.scoring.entities import entity_scores, tag_scores
from model.benchmarks.table import Benchmark, find
from model.common.errors import UserError
from model.heads import sequence_classification

_OURS = {"HasAns_": "has_answer_", "NoAns_": "no_answer_", "exact_match": "exact"}


def score_files(
    row: Benchmark,
    gold_path: Path,
    predictions_path: Path,
    na_probs_path: Path | None = None,
    na_threshold: float | None = None,
) -> dict[str, Any]:
    """Read both files and score: `task`, `num_rows`, `num_missing` and `scores` (0 to 100, as a job reports them).

    SQuAD adds `official`, what its script prints; v2.0 with odds of there being no answer adds `best`, our search of
    the threshold. NER adds `strict`, the scores of seqeval's strict IOB2.

    Raises:
        UserError: a file that is missing or malformed, or predictions that do not fit the gold file.
    """
    if not row.unanswerable and (na_probs_path is not None or na_threshold is not None):
        raise UserError(f"--na-prob and --na-threshold are for questions that may have no answer, not for {row.name}")
    gold = read_gold(row, gold_path)
    may_lack = row.head == "span" and not row.unanswerable  # as v1.1's script has it; v2.0's ends with an error
    predictions = read_predictions(row, predictions_path, gold, may_lack)
    report: dict[str, Any] = {
        "task": row.name,
        "num_rows": len(predictions),
        "num_missing": sum(prediction is None for prediction in predictions),
    }
    if row.head == "span":
        na_probs = None if na_probs_path is None else read_numbers(na_probs_path, gold)
        return report | _score_spans(row, gold, predictions, na_probs, na_threshold)
    if row.head == "tags":
        tags = [example.tags for example in gold.examples]
        strict = {"strict": entity_scores(tags, predictions, strict=True)} if row.has_entities else {}
        return report | {"scores": tag_scores(row.has_entities, tags, predictions), **strict}
    kind = np.float64 if row.head == "regression" else np.int64
    labels = np.array([example.label for example in gold.examples], dtype=kind)
    return report | {"scores": sequence_classification.scores(row, labels, np.array(predictions, dtype=kind))}


def diagnostic_row() -> Benchmark:
    """GLUE's diagnostic set (AX), diagnostic-full.tsv: MNLI's labels, scored by Matthews correlation."""
    columns = {"first": "Premise", "second": "Hypothesis", "label": "Label", "identity": None}
    names = {"name": "ax", "title": "AX", "metrics": ("matthews", "accuracy")}
    return find("mnli").model_copy(update={**columns, **names, "forms": ()})


def read_gold(row: Benchmark, path: Path) -> Part:
    """One labelled file in the benchmark's own format, or as the hub's Parquet has it.

    Raises:
        UserError: it is missing, malformed or has no labels.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected a gold file of {row.name}")
    own: dict[str, Any] = {"dev": {"": str(path)}, "dev_share": None, "forms": ()}
    if path.suffix == ".parquet":
        for form in row.forms:
            if form.dev:  # the first one says how the columns are called
                own |= {"dev": {"": ""}, "forms": (form.model_copy(update=own),)}
                break
    return read_dev(row.model_copy(update=own), Path())[""]


def _score_spans(
    row: Benchmark,
    gold: Part,
    predictions: Sequence[str | None],
    na_probs: Mapping[str, float] | None,
    na_threshold: float | None,
) -> dict[str, Any]:
    answers = {example.id: [answer.text for answer in example.answers] for example in gold.examples}
    found = {
        example.id: prediction for example, prediction in zip(gold.examples, predictions) if prediction is not None
    }
    if not row.unanswerable:
        official = squad_scripts.evaluate_v1(answers, found)
        return {"scores": _ours(official), "official": official}
    threshold = squad_scripts.DEFAULT_THRESHOLD if na_threshold is None else na_threshold
    official = squad_scripts.evaluate_v2(answers, found, na_probs, threshold)
    report: dict[str, Any] = {"scores": _ours(official), "official": official}
    if na_probs is not None:
        texts_in_order = [found[question] for question in answers]
        odds = [na_probs[question] for question in answers]
        best = squad.best_threshold(texts_in_order, odds, list(answers.values()))
        scores = squad.score_v2(squad.apply_threshold(texts_in_order, odds, best), list(answers.values()))
        report["best"] = {"null_threshold": best, "scores": scores}
    return report


def _ours(official: Mapping[str, float]) -> dict[str, float]:
    """The script's figures by the names that jobs use."""
    scores = {}
    for name, value in official.items():
        if not name.endswith("total") and not name.startswith("best_"):
            for theirs, ours in _OURS.items():
                name = name.replace(theirs, ours)
            scores[name] = value
    return scores
