"""The best answers to a question over its windows: the one that is predicted, and the n best for run_squad's file."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model.heads.features import Ints

_Floats = npt.NDArray[np.float32]
_DIGITS = 6


@dataclass(frozen=True)
class Candidate:
    """An answer that may be given: its text, and the logits of its first and last token."""

    text: str
    start_logit: float
    end_logit: float
    score: float


def best_span(logits: _Floats, starts: Ints, num_best: int, max_answer_length: int) -> tuple[int, int, float] | None:
    """The best answer in a window as (first token, last token, score), or None.

    `logits` are (tokens, 2); an answer begins at one of `starts`, has at most `max_answer_length` tokens,
    and both its ends are among the `num_best` best. Ties go to the earlier token.
    """
    firsts, lasts, scores = _scores(logits, starts, num_best, max_answer_length)
    if scores.size == 0:
        return None
    first, last = np.unravel_index(int(scores.argmax()), scores.shape)
    score = float(scores[first, last])
    return (int(firsts[first]), int(lasts[last]), score) if np.isfinite(score) else None


def best_spans(
    logits: _Floats, starts: Ints, num_best: int, max_answer_length: int
) -> tuple[Ints, Ints, npt.NDArray[np.float32]]:
    """All answers that `best_span` chooses among as first tokens, last tokens and scores, best first; equal ones in
    its order."""
    firsts, lasts, scores = _scores(logits, starts, num_best, max_answer_length)
    order = np.argsort(-scores, axis=None, kind="stable")
    order = order[np.isfinite(scores.reshape(-1)[order])]
    row, column = np.divmod(order, max(1, len(lasts)))
    return firsts[row], lasts[column], scores.reshape(-1)[order]


def _scores(
    logits: _Floats, starts: Ints, num_best: int, max_answer_length: int
) -> tuple[Ints, Ints, npt.NDArray[np.float32]]:
    """Starts, ends, and the score of each with each, (starts, ends); -inf where they make no answer."""
    firsts = starts[np.argsort(-logits[starts, 0], kind="stable")[:num_best]]
    lasts = np.argsort(-logits[:, 1], kind="stable")[:num_best]
    lengths = lasts[None, :] - firsts[:, None] + 1
    scores = logits[firsts, 0][:, None] + logits[lasts, 1][None, :]
    return firsts, lasts, np.where((lengths >= 1) & (lengths <= max_answer_length), scores, -np.inf)


def n_best(candidates: Iterable[Candidate], num_best: int, none: Candidate | None) -> list[dict[str, Any]]:
    """A question's entry of nbest_predictions.json, as BERT's run_squad.py writes it.

    The best `num_best` different texts, each with its probability among them; `none`, the answer "" of v2.0, is one
    of them, or comes after them. `candidates` come best first; no more are taken than are needed.
    """
    chosen: dict[str, Candidate] = {}
    for one in heapq.merge(candidates, [none] if none else [], key=lambda one: -one.score):
        if len(chosen) == num_best:
            break
        chosen.setdefault(one.text, one)
    if none is not None:
        chosen.setdefault("", none)
    entries = list(chosen.values()) or [Candidate("", 0.0, 0.0, 0.0)]
    most = max(one.score for one in entries)
    weights = [math.exp(one.score - most) for one in entries]
    total = sum(weights)
    return [
        {
            "text": one.text,
            "probability": round(weight / total, _DIGITS),
            "start_logit": round(one.start_logit, _DIGITS),
            "end_logit": round(one.end_logit, _DIGITS),
        }
        for one, weight in zip(entries, weights)
    ]
