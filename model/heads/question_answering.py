"""Questions about contexts (SQuAD): windows as sequences, and answers as exact slices of the context."""

from __future__ import annotations

import collections
import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from model.benchmarks.readers.examples import Answer, SpanExample
from model.benchmarks.scoring import squad_scores
from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe
from model.heads.evaluation import EvalResult
from model.heads.features import Features, Ints, Ragged, assemble, encode
from model.heads.windows import Window, owners, windows
from model.tokenizer.wordpiece import special_ids

_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Found:
    """The best answer to a question, whether or not it is better than none."""

    text: str
    """Exactly as the context has it; empty where there is no possible answer."""
    start: int
    """The index of its first character in the context."""
    end: int
    """One past its last character."""
    score: float
    """The probability of its start times that of its end, among the tokens of the context in its window."""
    null_odds: float
    """The score of [CLS] (the least over the windows) minus that of the answer, both sums of two logits."""


class PreparedSpans:
    """Questions as sequences [CLS] question [SEP] window of the context [SEP], a row per window.

    A target is the position of the answer's first and last token, or 0 ([CLS]) where the window does not
    hold it.

    Raises:
        UserError: `max_length` leaves no room for a context beside the longest question.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        examples: Sequence[SpanExample],
        tokenizer: Tokenizer,
        recipe: FinetuneRecipe,
    ) -> None:
        self._unanswerable = benchmark.unanswerable
        self._recipe = recipe
        self._examples = examples
        index = {context: number for number, context in enumerate(dict.fromkeys(e.context for e in examples))}
        self._context_of = [index[example.context] for example in examples]
        encodings = tokenizer.encode_batch(list(index), add_special_tokens=False)
        self._offsets = [np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) for encoding in encodings]
        contexts = Ragged.of([encoding.ids for encoding in encodings])
        questions = encode(tokenizer, [example.question for example in examples])
        question_lengths = np.minimum(questions.lengths, recipe.max_query_length)
        capacities = recipe.max_length - 3 - question_lengths
        if len(examples) and capacities.min() < 1:
            raise UserError(
                f"max_length {recipe.max_length} leaves no room for a context beside a question of "
                f"{question_lengths.max()} tokens; raise max_length or lower max_query_length"
            )
        self._windows: list[list[Window]] = []
        targets: list[tuple[int, int]] = []
        for number, example in enumerate(examples):
            offsets = self._offsets[self._context_of[number]]
            spans = windows(len(offsets), int(capacities[number]), recipe.doc_stride)
            answer = _token_span(offsets, example.answers[0]) if example.answers else None
            targets += [_target(answer, span, int(question_lengths[number]) + 2) for span in spans]
            self._windows.append(spans)
        question_of = np.repeat(np.arange(len(examples)), [len(spans) for spans in self._windows])
        bounds = np.array([span for spans in self._windows for span in spans], dtype=np.int64).reshape(-1, 2)
        context_starts = contexts.offsets[np.array(self._context_of, dtype=np.int64)[question_of]]
        sequences, boundaries = assemble(
            special_ids(tokenizer),
            (questions, questions.offsets[question_of], question_lengths[question_of]),
            (contexts, context_starts + bounds[:, 0], bounds[:, 1]),
        )
        self.features = Features(sequences, boundaries, np.array(targets, dtype=np.int64).reshape(-1, 2))

    def _documents(self, records: Sequence[dict[str, Any]], outputs: _Floats) -> dict[str, Any]:
        """The files that BERT's run_squad.py leaves, which the official scripts read."""
        rows = np.cumsum([0, *(len(spans) for spans in self._windows)])
        documents = {
            "predictions": {record["id"]: record["prediction"] for record in records},
            "nbest_predictions": {
                example.id: self._n_best(number, int(rows[number]), outputs)
                for number, example in enumerate(self._examples)
            },
        }
        if self._unanswerable:
            documents["null_odds"] = {record["id"]: record["null_odds"] for record in records}
        return documents

    def _n_best(self, number: int, row: int, outputs: _Floats) -> list[dict[str, Any]]:
        context = self._examples[number].context
        offsets = self._offsets[self._context_of[number]]
        spans = self._windows[number]
        owner = owners(len(offsets), spans)
        none: Candidate | None = None
        found = []
        for window, (start, length) in enumerate(spans):
            begin = int(self.features.sequences.offsets[row + window])
            null_score = float(outputs[begin].sum())
            if self._unanswerable and (none is None or null_score < none.score):
                none = Candidate("", float(outputs[begin, 0]), float(outputs[begin, 1]), null_score)
            first = begin + int(self.features.boundaries[row + window])
            owned = np.flatnonzero(owner[start : start + length] == window)
            logits = outputs[first : first + length]
            firsts, lasts, scores = best_spans(logits, owned, self._recipe.num_best, self._recipe.max_answer_length)
            edges = offsets[start + firsts, 0], offsets[start + lasts, 1]
            found.append((scores, logits[firsts, 0], logits[lasts, 1], *edges))
        totals, starts, stops, begins, ends = (np.concatenate(column) for column in zip(*found))
        candidates = (
            Candidate(context[begins[one] : ends[one]], float(starts[one]), float(stops[one]), float(totals[one]))
            for one in np.argsort(-totals, kind="stable")
        )
        return n_best(candidates, self._recipe.num_best, none)

    def evaluate(self, outputs: _Floats) -> EvalResult:
        """Official scores of start and end logits, (tokens, 2)."""
        answers = self.answers(outputs)
        found = [answer.text for answer in answers]
        null_odds = [answer.null_odds for answer in answers]
        gold = [[answer.text for answer in example.answers] for example in self._examples]
        predictions = found
        chosen: dict[str, float] = {}
        if self._unanswerable:
            chosen["null_threshold"] = squad_scores.best_threshold(found, null_odds, gold)
            predictions = squad_scores.apply_threshold(found, null_odds, chosen["null_threshold"])
        records: list[dict[str, Any]] = []
        for number, example in enumerate(self._examples):
            records.append({"id": example.id, "prediction": predictions[number], "label": gold[number]})
            if self._unanswerable:
                records[-1] |= {"best_span": found[number], "null_odds": null_odds[number]}
        degenerate = len(set(predictions)) == 1 and len({answer for answers in gold for answer in answers}) > 1
        scores = _scores(self._unanswerable, predictions, gold)
        return EvalResult(scores, records, degenerate, chosen, lambda: self._documents(records, outputs))

    def answers(self, outputs: _Floats) -> list[Found]:
        """The best answer to each question, of start and end logits, (tokens, 2)."""
        rows = np.cumsum([0, *(len(spans) for spans in self._windows)])
        return [self._answer(number, int(rows[number]), outputs) for number in range(len(self._examples))]

    def _answer(self, number: int, row: int, outputs: _Floats) -> Found:
        """The best answer to a question over its windows, which begin at `row`."""
        offsets = self._offsets[self._context_of[number]]
        spans = self._windows[number]
        owner = owners(len(offsets), spans)
        best, start, end, score = -np.inf, 0, 0, 0.0
        null_score = np.inf
        for window, (first_token, length) in enumerate(spans):
            begin = int(self.features.sequences.offsets[row + window])
            null_score = min(null_score, float(outputs[begin].sum()))
            first = begin + int(self.features.boundaries[row + window])
            logits = outputs[first : first + length]
            owned = np.flatnonzero(owner[first_token : first_token + length] == window)
            span = best_span(logits, owned, self._recipe.num_best, self._recipe.max_answer_length)
            if span is not None and span[2] > best:
                best = span[2]
                start, end = int(offsets[first_token + span[0], 0]), int(offsets[first_token + span[1], 1])
                score = float(np.exp(best - np.logaddexp.reduce(logits.astype(np.float64), axis=0).sum()))
        odds = round(null_score - best, 6) if np.isfinite(best) else 0.0
        return Found(self._examples[number].context[start:end], start, end, score, odds)


def majority_scores(benchmark: Benchmark, train: Sequence[SpanExample], dev: Sequence[SpanExample]) -> dict[str, float]:
    """Scores of always giving the most frequent training answer, "no answer" being one where it is
    allowed."""
    texts = (example.answers[0].text if example.answers else "" for example in train)
    answer = collections.Counter(texts).most_common(1)[0][0]
    gold = [[answer.text for answer in example.answers] for example in dev]
    return _scores(benchmark.unanswerable, [answer] * len(gold), gold)


def _scores(unanswerable: bool, predictions: Sequence[str], gold: Sequence[Sequence[str]]) -> dict[str, float]:
    return squad_scores.score_v2(predictions, gold) if unanswerable else squad_scores.score_v1(predictions, gold)


def _token_span(offsets: Ints, answer: Answer) -> tuple[int, int] | None:
    """The first and last token that the answer touches; None when it touches none (it is all white space)."""
    first = int(np.searchsorted(offsets[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], answer.start + len(answer.text), side="left")) - 1
    return (first, last) if first <= last else None


def _target(answer: tuple[int, int] | None, span: Window, context_begin: int) -> tuple[int, int]:
    start, length = span
    if answer is None or answer[0] < start or answer[1] >= start + length:
        return 0, 0
    return context_begin + answer[0] - start, context_begin + answer[1] - start


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
    firsts, lasts, scores = _pair_scores(logits, starts, num_best, max_answer_length)
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
    firsts, lasts, scores = _pair_scores(logits, starts, num_best, max_answer_length)
    order = np.argsort(-scores, axis=None, kind="stable")
    order = order[np.isfinite(scores.reshape(-1)[order])]
    row, column = np.divmod(order, max(1, len(lasts)))
    return firsts[row], lasts[column], scores.reshape(-1)[order]


def _pair_scores(
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
