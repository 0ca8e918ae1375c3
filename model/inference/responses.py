"""From a head's outputs to answers that a user reads: classes, scores, choices, spans and entities, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.head_specs.word_tags import has_entities
from model.benchmarks.requests import Request
from model.benchmarks.scoring.entities import entities
from model.heads.evaluation import EvalDataset
from model.heads.question_answering import PreparedSpans
from model.heads.token_classification import PreparedTags

DIGITS = 6  # of probabilities and scores

Floats = npt.NDArray[np.float32]


def replies(
    row: Benchmark, asked: Sequence[Request], prepared: EvalDataset, outputs: Floats, chosen: Mapping[str, float]
) -> list[dict[str, Any]]:
    """An answer for each thing asked, in order; what it holds is told in docs/using.md.

    Args:
        prepared: of the examples of `asked`.
        outputs: the head's, as `EvalDataset.judge` takes them.
        chosen: settings found on dev: `null_threshold` for questions that may have no answer.
    """
    if isinstance(prepared, PreparedSpans):
        found = _spans(prepared, outputs, chosen.get("null_threshold", 0.0) if row.unanswerable else None)
    elif isinstance(prepared, PreparedTags):
        found = _tags(row, asked, prepared.of_words(outputs))
    elif row.head == "regression":
        found = [{"prediction": round(float(value), DIGITS)} for value in outputs[:, 0].astype(np.float64)]
    else:
        found = _classes(row, asked, outputs)
    return [answer if one.id is None else {"id": one.id, **answer} for one, answer in zip(asked, found, strict=True)]


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Probabilities over the last axis."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _classes(row: Benchmark, asked: Sequence[Request], outputs: Floats) -> list[dict[str, Any]]:
    found = []
    for one, best, probabilities in zip(asked, outputs.argmax(axis=1), softmax(outputs)):
        rounded = [round(float(probability), DIGITS) for probability in probabilities]
        answer: dict[str, Any] = {"prediction": row.labels[best], "score": rounded[best]}
        if row.head == "choice":
            answer["text"] = one.example.endings[best]
        found.append({**answer, "probabilities": dict(zip(row.labels, rounded))})
    return found


def _spans(prepared: PreparedSpans, outputs: Floats, null_threshold: float | None) -> list[dict[str, Any]]:
    """`null_threshold` is None where every question has an answer."""
    found = []
    for span in prepared.answers(outputs):
        place = {"start": span.start, "end": span.end, "score": round(span.score, DIGITS)}
        if null_threshold is None:
            found.append({"prediction": span.text, **place})
            continue
        answer: dict[str, Any] = {"prediction": span.text, "answerable": True, **place, "null_odds": span.null_odds}
        if span.null_odds > null_threshold:
            nothing = {"prediction": "", "answerable": False, "start": None, "end": None}
            answer |= {**nothing, "best_span": {"text": span.text, **place}}
            del answer["score"]
        found.append(answer)
    return found


def _tags(row: Benchmark, asked: Sequence[Request], of_words: Floats) -> list[dict[str, Any]]:
    best = of_words.argmax(axis=1)
    probabilities = softmax(of_words).max(axis=1) if len(of_words) else np.zeros(0)
    found = []
    begin = 0
    for one in asked:
        count = len(one.example.words)
        tags = [row.labels[label] for label in best[begin : begin + count]]
        scores = probabilities[begin : begin + count]
        spans = [
            {
                "text": one.text[one.word_spans[first][0] : one.word_spans[end - 1][1]],
                "type": kind,
                "start": one.word_spans[first][0],
                "end": one.word_spans[end - 1][1],
                "score": round(float(scores[first:end].mean()), DIGITS),
            }
            for kind, first, end in (entities(tags) if has_entities(row) else ())
        ]
        answer = {"prediction": tags, "words": list(one.example.words)}
        found.append({**answer, "entities": spans} if has_entities(row) else answer)
        begin += count
    return found
