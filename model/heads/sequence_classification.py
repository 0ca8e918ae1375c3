"""Heads that read [CLS]: classes, regression, and choice among endings (Devlin et al. 2019, sections 4.1 and 4.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.head_specs.text_labels import ClassesSpec, RegressionSpec, gold_labels
from model.benchmarks.requests import Request
from model.config.finetuning import FinetuneRecipe
from model.heads.features import Features, Ragged, assemble, encode, truncated_lengths
from model.heads.head import (
    DIGITS,
    EvalDataset,
    EvalResult,
    Examples,
    Head,
    Outputs,
    ReadLabels,
    Responses,
    label_config,
    softmax,
)
from model.tokenizer.wordpiece import special_ids

_CONSTANT = 0.01  # predictions that spread less than this share of the gold scores' spread are constant


class ClassesDataset(EvalDataset):
    """Sentences, pairs or choices with one of several labels."""

    def __init__(self, row: Benchmark, examples: Sequence[Any], features: Features) -> None:
        self._row = row
        self._examples = examples
        self.features = features

    def evaluate(self, outputs: Outputs) -> EvalResult:
        """Score logits, (rows, labels)."""
        gold, best, labels = self.features.targets, outputs.argmax(axis=1), self._row.labels
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
        return EvalResult(ClassesSpec().scores(self._row, gold, best), records, degenerate)

    def responses(self, requests: Sequence[Request], outputs: Outputs, chosen: Mapping[str, float]) -> Responses:
        found = []
        for example, best, probabilities in zip(self._examples, outputs.argmax(axis=1), softmax(outputs)):
            rounded = [round(float(probability), DIGITS) for probability in probabilities]
            response = {"prediction": self._row.labels[best], "score": rounded[best], **self._details(example, best)}
            found.append({**response, "probabilities": dict(zip(self._row.labels, rounded))})
        return found

    def _details(self, example: Any, best: int) -> dict[str, Any]:
        return {}


class ChoiceDataset(ClassesDataset):
    """Contexts whose labels are their endings."""

    def _details(self, example: Any, best: int) -> dict[str, Any]:
        return {"text": example.endings[best]}


class RegressionDataset(ClassesDataset):
    """Sentences or pairs with a score."""

    def evaluate(self, outputs: Outputs) -> EvalResult:
        """Score predictions, (rows, 1), rounded as in predictions.jsonl."""
        predicted = np.array([round(float(value), 6) for value in outputs[:, 0]])
        gold = gold_labels(self._examples, np.float64)
        degenerate = float(predicted.std()) <= _CONSTANT * float(gold.std())
        records = [
            {"id": example.id, "prediction": value, "label": example.label}
            for example, value in zip(self._examples, predicted.tolist())
        ]
        return EvalResult(RegressionSpec().scores(self._row, gold, predicted), records, degenerate)

    def responses(self, requests: Sequence[Request], outputs: Outputs, chosen: Mapping[str, float]) -> Responses:
        return [{"prediction": round(float(value), DIGITS)} for value in outputs[:, 0].astype(np.float64)]


class ClassesHead(Head):
    """One of several labels for a sentence or a pair; cross-entropy."""

    transformers_class = "BertForSequenceClassification"
    peft_task_type: str | None = "SEQ_CLS"
    is_probed = True

    def prepare(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> EvalDataset:
        features = text_features(row, examples, tokenizer, recipe.max_length, gold_labels(examples, np.int64))
        return ClassesDataset(row, examples, features)

    def majority_scores(self, row: Benchmark, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
        gold, known = gold_labels(dev, np.int64), gold_labels(train, np.int64)
        return ClassesSpec().scores(row, gold, np.full(len(gold), np.bincount(known).argmax()))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets)

    def probe_targets(self, row: Benchmark, targets: Tensor) -> Tensor:
        return F.one_hot(targets, len(row.labels)).double()

    def transformers_config(self, row: Benchmark) -> dict[str, Any]:
        return label_config(row.labels)

    def from_transformers(self, row: Benchmark, num_outputs: int, read_labels: ReadLabels) -> Benchmark:
        if num_outputs == 1:
            return row.model_copy(update={"head": "regression", "labels": ()})
        return row.model_copy(update={"head": "classes", "labels": read_labels()})


class RegressionHead(ClassesHead):
    """A score for a sentence or a pair; squared error."""

    averages_probabilities = False

    def prepare(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> EvalDataset:
        features = text_features(row, examples, tokenizer, recipe.max_length, gold_labels(examples, np.float32))
        return RegressionDataset(row, examples, features)

    def majority_scores(self, row: Benchmark, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
        gold, known = gold_labels(dev, np.float32), gold_labels(train, np.float32)
        return RegressionSpec().scores(row, gold, np.full(len(gold), known.mean(), dtype=np.float64))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(logits[:, 0], targets)

    def probe_targets(self, row: Benchmark, targets: Tensor) -> Tensor:
        return targets.double()[:, None]

    def transformers_config(self, row: Benchmark) -> dict[str, Any]:
        return {**label_config(["score"]), "problem_type": "regression"}


class ChoiceHead(ClassesHead):
    """The right one of several endings: a score for each sequence; cross-entropy over a row's sequences."""

    transformers_class = "BertForMultipleChoice"
    peft_task_type = None
    is_probed = False

    def prepare(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> EvalDataset:
        contexts = encode(tokenizer, [example.context for example in examples])
        endings = encode(tokenizer, [ending for example in examples for ending in example.endings])
        num_endings = len(examples[0].endings) if examples else 1
        context_of = np.repeat(np.arange(len(examples)), num_endings)
        sequences, boundaries = _pairs(tokenizer, contexts, context_of, endings, recipe.max_length)
        features = Features(sequences, boundaries, gold_labels(examples, np.int64), num_endings)
        return ChoiceDataset(row, examples, features)

    def transformers_config(self, row: Benchmark) -> dict[str, Any]:
        return {}

    def from_transformers(self, row: Benchmark, num_outputs: int, read_labels: ReadLabels) -> Benchmark:
        return row


def text_features(
    row: Benchmark,
    examples: Sequence[Any],
    tokenizer: Tokenizer,
    max_length: int,
    targets: npt.NDArray[np.int64] | npt.NDArray[np.float32],
) -> Features:
    """[CLS] text [SEP], or [CLS] text [SEP] second text [SEP], of each example."""
    first = encode(tokenizer, [example.first for example in examples])
    if row.second is None:
        texts = (first, first.offsets[:-1], np.minimum(first.lengths, max_length - 2))
        sequences, boundaries = assemble(special_ids(tokenizer), texts)
    else:
        second = encode(tokenizer, [example.second for example in examples])
        sequences, boundaries = _pairs(tokenizer, first, np.arange(len(examples)), second, max_length)
    return Features(sequences, boundaries, targets)


def _pairs(
    tokenizer: Tokenizer, first: Ragged, first_of: npt.NDArray[np.int64], second: Ragged, max_length: int
) -> tuple[Ragged, npt.NDArray[np.int64]]:
    """Sequences of each second text with the first text numbered `first_of`."""
    lengths, second_lengths = truncated_lengths(first.lengths[first_of], second.lengths, max_length - 3)
    return assemble(
        special_ids(tokenizer),
        (first, first.offsets[:-1][first_of], lengths),
        (second, second.offsets[:-1], second_lengths),
    )
