"""Heads that read [CLS]: classes, regression, and choice among endings (Devlin et al. 2019, sections 4.1 and 4.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model.benchmarks.head_specs.text_labels import ClassesSpec, RegressionSpec, gold_labels
from model.benchmarks.requests import Request
from model.benchmarks.table import Benchmark
from model.config.finetuning import FinetuneRecipe
from model.heads.features import Features, Ints, Ragged, assemble, encode, truncated_lengths
from model.heads.head import DIGITS, EvalDataset, EvalResult, Examples, Head, Outputs, ReadLabels, Responses, softmax
from model.tokenizer.wordpiece import special_ids

_CONSTANT = 0.01  # predictions count as constant if their spread is below this share of the gold scores' spread


class ClassesDataset(EvalDataset):
    """Features of labeled texts: [CLS] text [SEP], or [CLS] text [SEP] second text [SEP]."""

    dtype: type[np.generic] = np.int64  # of the targets

    def __init__(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> None:
        self._row = row
        self._examples = examples
        sequences, boundaries = self._sequences(tokenizer, recipe.max_length)
        group_size = len(boundaries) // len(examples) if examples else 1
        self.features = Features(sequences, boundaries, gold_labels(examples, self.dtype), group_size)

    def _sequences(self, tokenizer: Tokenizer, max_length: int) -> tuple[Ragged, Ints]:
        first = encode(tokenizer, [example.first for example in self._examples])
        if self._row.second is None:
            texts = (first, first.offsets[:-1], np.minimum(first.lengths, max_length - 2))
            return assemble(special_ids(tokenizer), texts)
        second = encode(tokenizer, [example.second for example in self._examples])
        return _pairs(tokenizer, first, np.arange(len(self._examples)), second, max_length)

    def evaluate(self, outputs: Outputs, chosen: Mapping[str, float] | None = None) -> EvalResult:
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
        names = [self._row.label_name(label) for label in self._row.labels]
        found = []
        for example, best, probabilities in zip(self._examples, outputs.argmax(axis=1), softmax(outputs)):
            rounded = [round(float(probability), DIGITS) for probability in probabilities]
            response = {"prediction": names[best], "score": rounded[best], **self._details(example, best)}
            found.append({**response, "probabilities": dict(zip(names, rounded))})
        return found

    def _details(self, example: Any, best: int) -> dict[str, Any]:
        return {}


class ChoiceDataset(ClassesDataset):
    """Contexts with several endings. A row has one sequence per ending: [CLS] context [SEP] ending [SEP]."""

    def _sequences(self, tokenizer: Tokenizer, max_length: int) -> tuple[Ragged, Ints]:
        contexts = encode(tokenizer, [example.context for example in self._examples])
        endings = encode(tokenizer, [ending for example in self._examples for ending in example.endings])
        context_of = [number for number, example in enumerate(self._examples) for _ in example.endings]
        return _pairs(tokenizer, contexts, np.array(context_of, dtype=np.int64), endings, max_length)

    def _details(self, example: Any, best: int) -> dict[str, Any]:
        return {"text": example.endings[best]}


class RegressionDataset(ClassesDataset):
    """Features of sentences or pairs with a score."""

    dtype = np.float32

    def evaluate(self, outputs: Outputs, chosen: Mapping[str, float] | None = None) -> EvalResult:
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


def _pairs(tokenizer: Tokenizer, first: Ragged, first_of: Ints, second: Ragged, max_length: int) -> tuple[Ragged, Ints]:
    """Build the sequence of each second text with its first text, whose index is in `first_of`."""
    lengths, second_lengths = truncated_lengths(first.lengths[first_of], second.lengths, max_length - 3)
    return assemble(
        special_ids(tokenizer),
        (first, first.offsets[:-1][first_of], lengths),
        (second, second.offsets[:-1], second_lengths),
    )


class ClassesHead(Head):
    """Predicts one of several labels for a sentence or a pair. The loss is cross-entropy."""

    dataset: type[EvalDataset] = ClassesDataset
    transformers_class = "BertForSequenceClassification"
    peft_task_type: str | None = "SEQ_CLS"
    is_probed = True

    def majority_scores(self, row: Benchmark, train: Examples, dev: Examples) -> dict[str, float]:
        gold, known = gold_labels(dev, np.int64), gold_labels(train, np.int64)
        return ClassesSpec().scores(row, gold, np.full(len(gold), np.bincount(known).argmax()))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets)

    def from_transformers(self, row: Benchmark, num_outputs: int, read_labels: ReadLabels) -> Benchmark:
        if num_outputs == 1:
            return row.model_copy(update={"head": "regression", "labels": ()})
        return row.model_copy(update={"head": "classes", "labels": read_labels()})


class RegressionHead(ClassesHead):
    """Predicts a score for a sentence or a pair. The loss is the squared error."""

    dataset = RegressionDataset
    averages_probabilities = False

    def majority_scores(self, row: Benchmark, train: Examples, dev: Examples) -> dict[str, float]:
        gold, known = gold_labels(dev, np.float32), gold_labels(train, np.float32)
        return RegressionSpec().scores(row, gold, np.full(len(gold), known.mean(), dtype=np.float64))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(logits[:, 0], targets)

    def transformers_config(self, row: Benchmark) -> dict[str, Any]:
        return {"id2label": {"0": "score"}, "label2id": {"score": 0}, "problem_type": "regression"}


class ChoiceHead(ClassesHead):
    """Chooses among endings by a score for each sequence. The loss is cross-entropy over a row's sequences."""

    dataset = ChoiceDataset
    transformers_class = "BertForMultipleChoice"
    peft_task_type = None
    is_probed = False

    def transformers_config(self, row: Benchmark) -> dict[str, Any]:
        return {}

    def from_transformers(self, row: Benchmark, num_outputs: int, read_labels: ReadLabels) -> Benchmark:
        return row
