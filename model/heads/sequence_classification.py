"""Sentences, pairs and choices: features, scores and the majority answer. The head reads [CLS]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from model.benchmarks.readers.examples import ChoiceExample, TextExample
from model.benchmarks.scoring import metrics
from model.benchmarks.table import Benchmark
from model.config.finetuning import FinetuneRecipe
from model.heads.evaluation import EvalResult
from model.heads.features import Features, Ints, assemble, encode, truncated_lengths

_Example = TextExample | ChoiceExample
_CONSTANT = 0.01  # a regression whose predictions spread less than this share of the gold scores' is constant


class PreparedTexts:
    """Sentences, pairs or choices as sequences."""

    def __init__(
        self,
        benchmark: Benchmark,
        examples: Sequence[_Example],
        tokenizer: Tokenizer,
        recipe: FinetuneRecipe,
    ) -> None:
        self._benchmark = benchmark
        self._examples = examples
        self.features = _features(benchmark, examples, tokenizer, recipe.max_length)

    def evaluate(self, outputs: npt.NDArray[np.float32]) -> EvalResult:
        """Scores of the outputs: (rows, labels) for classes and choice, (rows, 1) for regression."""
        if self._benchmark.head == "regression":
            # As they are published, so that predictions.jsonl has the score that the job reports.
            predicted = np.array([round(float(value), 6) for value in outputs[:, 0]])
            gold = np.array([example.label for example in self._examples], dtype=np.float64)
            degenerate = float(predicted.std()) <= _CONSTANT * float(gold.std())
            records = [
                {"id": example.id, "prediction": value, "label": example.label}
                for example, value in zip(self._examples, predicted.tolist())
            ]
            return EvalResult(scores(self._benchmark, gold, predicted), records, degenerate)
        return self._evaluate_classes(outputs)

    def _evaluate_classes(self, outputs: npt.NDArray[np.float32]) -> EvalResult:
        gold = self.features.targets
        best = outputs.argmax(axis=1)
        labels = self._benchmark.labels
        records = [
            {
                "id": example.id,
                "prediction": labels[choice],
                "label": None if example.label is None else labels[int(example.label)],
                "logits": [round(float(value), 4) for value in row],
            }
            for example, choice, row in zip(self._examples, best, outputs)
        ]
        degenerate = len(np.unique(best)) == 1 and len(np.unique(gold)) > 1
        return EvalResult(scores(self._benchmark, gold, best), records, degenerate)


def majority_scores(
    benchmark: Benchmark,
    train: Sequence[_Example],
    dev: Sequence[_Example],
) -> dict[str, float]:
    """Scores of always giving the most frequent training label (the first of equals), or the mean training
    score."""
    gold, known = _targets(benchmark, dev), _targets(benchmark, train)
    if benchmark.head == "regression":
        return scores(benchmark, gold, np.full(len(gold), known.mean(), dtype=np.float64))
    return scores(benchmark, gold, np.full(len(gold), np.bincount(known).argmax()))


def scores(benchmark: Benchmark, gold: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> dict[str, float]:
    """The benchmark's metrics, 0 to 100, of label numbers or scores, (rows,) each."""
    if benchmark.head == "regression":
        return {name: metrics.CORRELATIONS[name](gold.astype(np.float64), predicted) for name in benchmark.metrics}
    positive = None if benchmark.positive is None else benchmark.labels.index(benchmark.positive)
    return metrics.label_scores(benchmark.metrics, gold, predicted, len(benchmark.labels), positive)


def _targets(benchmark: Benchmark, examples: Sequence[_Example]) -> npt.NDArray[Any]:
    """Labels as int64, or scores as float32; unlabelled rows have -1."""
    kind = np.float32 if benchmark.head == "regression" else np.int64
    return np.array([-1 if example.label is None else example.label for example in examples], dtype=kind)


def _features(
    benchmark: Benchmark,
    examples: Sequence[_Example],
    tokenizer: Tokenizer,
    max_length: int,
) -> Features:
    from model.tokenizer.wordpiece import special_ids  # which needs torch; scoring a file does not

    special = special_ids(tokenizer)
    targets = _targets(benchmark, examples)
    group_size = 1
    firsts: list[str] = []
    seconds: list[str] = []
    for example in examples:
        if isinstance(example, ChoiceExample):
            group_size = len(example.endings)
            firsts.append(example.context)
            seconds.extend(example.endings)
        else:
            firsts.append(example.first)
            if example.second is not None:
                seconds.append(example.second)
    first = encode(tokenizer, firsts)
    row_of = np.repeat(np.arange(len(firsts)), group_size)  # a context is encoded once for all its endings
    starts, lengths = first.offsets[:-1][row_of], first.lengths[row_of]
    if benchmark.second is None and benchmark.head != "choice":
        sequences, boundaries = assemble(special, (first, starts, np.minimum(lengths, max_length - 2)))
        return Features(sequences, boundaries, targets)
    second = encode(tokenizer, seconds)
    second_lengths: Ints = second.lengths
    lengths, second_lengths = truncated_lengths(lengths, second_lengths, max_length - 3)
    sequences, boundaries = assemble(special, (first, starts, lengths), (second, second.offsets[:-1], second_lengths))
    return Features(sequences, boundaries, targets, group_size)
