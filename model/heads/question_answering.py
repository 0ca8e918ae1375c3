"""The head "span": answers as exact slices of their context (SQuAD), with windows over long contexts."""

from __future__ import annotations

import collections
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model.benchmarks.readers.examples import Answer
from model.benchmarks.requests import Request
from model.benchmarks.scoring import squad_scores
from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.config.finetuning import Batches, FinetuneRecipe
from model.heads.batches import FinetuneBatch
from model.heads.features import Features, Ints, Ragged, Window, assemble, encode, owners, windows
from model.heads.head import DIGITS, EvalDataset, EvalResult, Examples, Head, Outputs, Responses
from model.tokenizer.wordpiece import special_ids

_MASKED_OUT = -1e9  # the logit of padding; finite, so that a row of only padding stays finite


class PredictedSpan(NamedTuple):
    """The best answer to a question, even if "no answer" scores higher."""

    text: str
    """The slice from `start` to `end` of the context; empty if there is no possible answer."""
    start: int
    end: int
    score: float
    """Start probability times end probability over the context tokens of the window."""
    null_odds: float
    """The [CLS] score (minimum over windows) minus the answer's score; each score is a sum of two logits."""


class SpanCandidate(NamedTuple):
    """A possible answer: a slice of the context, and the logits of its first and last token in one of the windows."""

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float
    window: int = 0

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


class _WindowOutputs(NamedTuple):
    """A head's outputs on one window of a context."""

    start: int
    """The window's first token in the context."""
    context: slice
    """The context's tokens among those of the window."""
    logits: npt.NDArray[np.float64]
    """Start and end logits of all tokens from [CLS] to the last [SEP], (tokens, 2)."""
    owned: Ints
    """The tokens of the window that have more context in it than in others; answers may start at them."""

    @property
    def null_score(self) -> float:
        """The score of the answer [CLS]."""
        return float(self.logits[0].sum())


class SpanDataset(EvalDataset):
    """Questions as sequences [CLS] question [SEP] window of the context [SEP], a row per window.

    Targets are the positions of the answer's first and last token, or 0 ([CLS]) if the window lacks the answer.

    Raises:
        UserError: `max_length` is too short for the longest question plus context.
    """

    def __init__(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> None:
        self._unanswerable = row.unanswerable
        self._limits = recipe.num_best, recipe.max_answer_length
        self._examples = examples
        index = {context: number for number, context in enumerate(dict.fromkeys(e.context for e in examples))}
        context_of = [index[example.context] for example in examples]
        encodings = tokenizer.encode_batch(list(index), add_special_tokens=False)
        context_offsets = [np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) for encoding in encodings]
        self._offsets = [context_offsets[context] for context in context_of]
        contexts = Ragged.of([encoding.ids for encoding in encodings])
        questions = encode(tokenizer, [example.question for example in examples])
        question_lengths = np.minimum(questions.lengths, recipe.max_query_length)
        capacities = recipe.max_length - 3 - question_lengths
        if len(examples) and capacities.min() < 1:
            raise UserError(
                f"max_length {recipe.max_length} leaves no space for a context after a question of "
                f"{question_lengths.max()} tokens; raise max_length or lower max_query_length"
            )
        self._windows: list[list[Window]] = []
        targets: list[tuple[int, int]] = []
        for number, example in enumerate(examples):
            offsets = self._offsets[number]
            spans = windows(len(offsets), int(capacities[number]), recipe.doc_stride)
            answer = _token_span(offsets, example.answers[0]) if example.answers else None
            targets += [_target(answer, span, int(question_lengths[number]) + 2) for span in spans]
            self._windows.append(spans)
        question_of = np.repeat(np.arange(len(examples)), [len(spans) for spans in self._windows])
        bounds = np.array([span for spans in self._windows for span in spans], dtype=np.int64).reshape(-1, 2)
        context_starts = contexts.offsets[np.array(context_of, dtype=np.int64)[question_of]]
        sequences, boundaries = assemble(
            special_ids(tokenizer),
            (questions, questions.offsets[question_of], question_lengths[question_of]),
            (contexts, context_starts + bounds[:, 0], bounds[:, 1]),
        )
        self.features = Features(sequences, boundaries, np.array(targets, dtype=np.int64).reshape(-1, 2))

    def evaluate(self, outputs: Outputs, chosen: Mapping[str, float] | None = None) -> EvalResult:
        """Compute the official scores from start and end logits, (tokens, 2)."""
        spans = self.answers(outputs)
        predictions = [span.text for span in spans]
        gold = _gold_texts(self._examples)
        used: dict[str, float] = {}
        if self._unanswerable:
            null_odds = [span.null_odds for span in spans]
            used = dict(chosen or {"null_threshold": squad_scores.best_threshold(predictions, null_odds, gold)})
            predictions = squad_scores.apply_threshold(predictions, null_odds, used["null_threshold"])
        records: list[dict[str, Any]] = [
            {"id": example.id, "prediction": prediction, "label": answers}
            for example, prediction, answers in zip(self._examples, predictions, gold)
        ]
        if self._unanswerable:
            for record, span in zip(records, spans):
                record |= {"best_span": span.text, "null_odds": span.null_odds}
        degenerate = len(set(predictions)) == 1 and len({answer for answers in gold for answer in answers}) > 1
        scores = squad_scores.scores_of(predictions, gold, self._unanswerable)
        return EvalResult(scores, records, degenerate, used, lambda: self._documents(records, outputs))

    def responses(self, requests: Sequence[Request], outputs: Outputs, chosen: Mapping[str, float]) -> Responses:
        threshold = chosen.get("null_threshold", 0.0)
        found: Responses = []
        for span in self.answers(outputs):
            place = {"start": span.start, "end": span.end, "score": round(span.score, DIGITS)}
            odds = {"null_odds": span.null_odds}
            if not self._unanswerable:
                found.append({"prediction": span.text, **place})
            elif span.null_odds <= threshold:
                found.append({"prediction": span.text, "answerable": True, **place, **odds})
            else:
                nothing = {"prediction": "", "answerable": False, "start": None, "end": None}
                found.append({**nothing, **odds, "best_span": {"text": span.text, **place}})
        return found

    def answers(self, outputs: Outputs) -> list[PredictedSpan]:
        """Find the best answer to each question from start and end logits, (tokens, 2)."""
        return [self._answer(number, windows) for number, windows in self._questions(outputs)]

    def _questions(self, outputs: Outputs) -> Iterator[tuple[int, list[_WindowOutputs]]]:
        """Yield each question's index and the outputs on its windows."""
        row = 0
        sequences, boundaries = self.features.sequences, self.features.boundaries
        for number, spans in enumerate(self._windows):
            owner = owners(len(self._offsets[number]), spans)
            found = []
            for window, (start, length) in enumerate(spans):
                logits = outputs[sequences.offsets[row] : sequences.offsets[row + 1]].astype(np.float64)
                first = int(boundaries[row])
                owned = first + np.flatnonzero(owner[start : start + length] == window)
                found.append(_WindowOutputs(start, slice(first, first + length), logits, owned))
                row += 1
            yield number, found

    def _answer(self, number: int, found: Sequence[_WindowOutputs]) -> PredictedSpan:
        best = next(self._candidates(number, found), None)
        if best is None:
            return PredictedSpan("", 0, 0, 0.0, 0.0)
        window = found[best.window]
        probability = float(np.exp(best.score - np.logaddexp.reduce(window.logits[window.context], axis=0).sum()))
        odds = round(min(window.null_score for window in found) - best.score, DIGITS)
        return PredictedSpan(best.text, best.start, best.end, probability, odds)

    def _candidates(self, number: int, found: Sequence[_WindowOutputs]) -> Iterator[SpanCandidate]:
        """Yield the possible answers in all windows of a question, best first; ties in the order of `possible_spans`.

        As in BERT's run_squad.py, one text can occur several times.
        """
        context, offsets = self._examples[number].context, self._offsets[number]
        columns = []
        for index, window in enumerate(found):
            firsts, lasts = possible_spans(window.logits, window.owned, window.context.stop, *self._limits)
            shift = window.start - window.context.start
            begins, ends = offsets[firsts + shift, 0], offsets[lasts + shift, 1]
            scores = window.logits[firsts, 0], window.logits[lasts, 1]
            columns.append((begins, ends, *scores, np.full(len(firsts), index)))
        begins, ends, starts, stops, windows = (np.concatenate(column).tolist() for column in zip(*columns))
        for one in np.argsort(-np.add(starts, stops), kind="stable"):
            text = context[begins[one] : ends[one]]
            yield SpanCandidate(text, begins[one], ends[one], starts[one], stops[one], windows[one])

    def _documents(self, records: Sequence[dict[str, Any]], outputs: Outputs) -> dict[str, Any]:
        """Build the files that BERT's run_squad.py writes and the official scripts read."""
        n_best_of = {
            self._examples[number].id: self._n_best(number, found) for number, found in self._questions(outputs)
        }
        predictions = {record["id"]: record["prediction"] for record in records}
        documents = {"predictions": predictions, "nbest_predictions": n_best_of}
        if self._unanswerable:
            documents["null_odds"] = {record["id"]: record["null_odds"] for record in records}
        return documents

    def _n_best(self, number: int, found: Sequence[_WindowOutputs]) -> list[dict[str, Any]]:
        none = None
        if self._unanswerable:
            logits = min(found, key=lambda window: window.null_score).logits[0].tolist()
            none = SpanCandidate("", 0, 0, *logits)
        return n_best(self._candidates(number, found), self._limits[0], none)


class SpanHead(Head):
    """Predicts where an answer starts and ends. The loss is the mean cross-entropy. As in BERT, there is no dropout."""

    dataset = SpanDataset
    transformers_class = "BertForQuestionAnswering"
    layer_name = "qa_outputs"
    peft_task_type = "QUESTION_ANS"
    output_names = ("start_logits", "end_logits")
    reads_tokens = True
    batches: Batches = "length"
    has_dropout = False
    averages_probabilities = False
    default_max_length = 384  # as in the paper for SQuAD

    def majority_scores(self, row: Benchmark, train: Examples, dev: Examples) -> dict[str, float]:
        """Score the most frequent training answer, which may be "no answer", as the prediction for every question."""
        texts = (example.answers[0].text if example.answers else "" for example in train)
        answer = collections.Counter(texts).most_common(1)[0][0]
        return squad_scores.scores_of([answer] * len(dev), _gold_texts(dev), row.unanswerable)

    def mask_padding(self, logits: Tensor, batch: FinetuneBatch) -> Tensor:
        if batch.attention_mask is None:
            return logits
        return logits.masked_fill(~batch.attention_mask[:, :, None], _MASKED_OUT)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        starts, ends = logits.unbind(-1)
        return (F.cross_entropy(starts, targets[:, 0]) + F.cross_entropy(ends, targets[:, 1])) / 2


def _gold_texts(examples: Examples) -> list[list[str]]:
    return [[answer.text for answer in example.answers] for example in examples]


def possible_spans(
    logits: npt.NDArray[np.float64], starts: Ints, end: int, num_best: int, max_answer_length: int
) -> tuple[Ints, Ints]:
    """Return the first and last token of each possible answer in a window, (answers,) each.

    As in BERT's run_squad.py, the `num_best` start and end logits are those of all tokens, including the question's;
    only then are pairs dropped that are no answer. Sorted by start logit, then by end logit; ties go to the earlier
    token.

    Args:
        logits: start and end logits of the window's tokens, (tokens, 2).
        starts: tokens at which an answer may begin.
        end: the end of the context: answers end before this token.
    """
    firsts, lasts = np.argsort(-logits, axis=0, kind="stable")[:num_best].T
    lengths = lasts[None, :] - firsts[:, None] + 1
    possible = np.isin(firsts, starts)[:, None] & (lasts < end)[None, :]
    row, column = np.nonzero(possible & (lengths >= 1) & (lengths <= max_answer_length))
    return firsts[row], lasts[column]


def n_best(candidates: Iterable[SpanCandidate], num_best: int, none: SpanCandidate | None) -> list[dict[str, Any]]:
    """Build a question's entry in nbest_predictions.json, as BERT's run_squad.py does.

    Args:
        candidates: answers, best first; consumed lazily.
        num_best: number of distinct texts to return, each with its probability among them.
        none: the empty answer of v2.0, which is added if it is not among the texts.
    """
    chosen: dict[str, SpanCandidate] = {}
    for one in heapq.merge(candidates, [none] if none else [], key=lambda one: -one.score):
        if len(chosen) == num_best:
            break
        chosen.setdefault(one.text, one)
    if none is not None:
        chosen.setdefault("", none)
    entries = list(chosen.values()) or [SpanCandidate("", 0, 0, 0.0, 0.0)]
    most = max(one.score for one in entries)
    weights = [math.exp(one.score - most) for one in entries]
    total = sum(weights)
    return [
        {
            "text": one.text,
            "probability": round(weight / total, DIGITS),
            "start_logit": round(one.start_logit, DIGITS),
            "end_logit": round(one.end_logit, DIGITS),
        }
        for one, weight in zip(entries, weights)
    ]


def _token_span(offsets: Ints, answer: Answer) -> tuple[int, int] | None:
    """Find the first and last token of the answer; None if it has none (it is only white space)."""
    first = int(np.searchsorted(offsets[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], answer.start + len(answer.text), side="left")) - 1
    return (first, last) if first <= last else None


def _target(answer: tuple[int, int] | None, span: Window, context_begin: int) -> tuple[int, int]:
    start, length = span
    if answer is None or answer[0] < start or answer[1] >= start + length:
        return 0, 0
    return context_begin + answer[0] - start, context_begin + answer[1] - start
