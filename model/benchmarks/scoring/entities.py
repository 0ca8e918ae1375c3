"""Entities in IOB tags, and their precision, recall and F1 as defined by CoNLL's conlleval script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from model.benchmarks.scoring.metrics import f1, percent
from model.benchmarks.table import Benchmark

Entity = tuple[str, int, int]  # type, first word, one past the last word


def entities(tags: Sequence[str], strict: bool = False) -> list[Entity]:
    """Extract the entities of one sentence, tagged in IOB1 or IOB2.

    conlleval's rule: an entity begins at B-, and at an I- that does not continue one of the same type. `strict`
    (seqeval's strict IOB2 mode) skips an I- that continues no entity of its type.
    """
    found: list[Entity] = []
    entity_type, start = "", 0
    for position, tag in enumerate((*tags, "O")):
        prefix, _, tag_type = tag.partition("-")
        if entity_type and (prefix != "I" or tag_type != entity_type):
            found.append((entity_type, start, position))
            entity_type = ""
        if prefix == "B" or (prefix != "O" and not entity_type and not strict):
            entity_type, start = tag_type, position
    return found


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Convert tags to IOB2, where every entity begins with B-."""
    result = ["O"] * len(tags)
    for entity_type, start, end in entities(tags):
        result[start:end] = [f"B-{entity_type}"] + [f"I-{entity_type}"] * (end - start - 1)
    return result


def entity_counts(gold: Sequence[str], predicted: Sequence[str], strict: bool = False) -> tuple[int, int, int]:
    assert len(gold) == len(predicted), "a tag per word"
    expected, found = set(entities(gold, strict)), set(entities(predicted, strict))
    return len(expected & found), len(found), len(expected)


def entity_scores(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], strict: bool = False
) -> dict[str, float]:
    """Compute precision, recall and F1 (0 to 100). An entity is correct if its type and both ends match."""
    counts = [entity_counts(*sentence, strict) for sentence in zip(gold, predicted, strict=True)]
    num_correct, num_predicted, num_gold = np.array(counts).reshape(-1, 3).sum(axis=0)
    return {
        "f1": float(f1(num_correct, num_predicted, num_gold)),
        "precision": float(percent(num_correct, num_predicted)),
        "recall": float(percent(num_correct, num_gold)),
    }


def has_entities(row: Benchmark) -> bool:
    """Check whether the tags mark entities (IOB2, scored by entity) rather than a class for each word."""
    return "accuracy" not in row.metrics


def tag_scores(row: Benchmark, gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute entity scores, or the accuracy over words if the tags mark no entities."""
    if has_entities(row):
        return entity_scores(gold, predicted)
    right = [tag == other for tags, others in zip(gold, predicted) for tag, other in zip(tags, others)]
    return {"accuracy": 100.0 * sum(right) / len(right)}
