"""The interface of a fine-tuning head, and what an evaluation of its outputs returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from torch import Tensor

from model.benchmarks.requests import Request
from model.benchmarks.table import Benchmark
from model.config.finetuning import FinetuneRecipe
from model.heads.batches import FinetuneBatch
from model.heads.features import Features

DIGITS = 6  # of the probabilities and scores in responses

Outputs = npt.NDArray[np.float32]
"""A head's outputs: (rows, width), or (tokens, width) for heads that read tokens."""
Examples = Sequence[Any]
Responses = list[dict[str, Any]]
ReadLabels = Callable[[], tuple[str, ...]]


@dataclass(frozen=True)
class EvalResult:
    """The result of an evaluation."""

    scores: dict[str, float]
    """Metrics from 0 to 100."""
    predictions: list[dict[str, Any]]
    """A record for each row, as in predictions.jsonl."""
    degenerate: bool = False
    """The model gives all rows the same answer although the labels differ."""
    chosen: dict[str, float] = field(default_factory=dict)
    """Settings that were chosen on dev, such as `null_threshold`."""
    documents: Callable[[], dict[str, Any]] = dict
    """Makes the benchmark's official files: JSON documents by file name, without extension."""


class EvalDataset(ABC):
    """Examples as features, with the evaluation of a model's outputs on them.

    Raises:
        UserError: the recipe's lengths leave no space for the texts.
    """

    features: Features

    @abstractmethod
    def __init__(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> None: ...

    @abstractmethod
    def evaluate(self, outputs: Outputs) -> EvalResult:
        """Score the outputs against the labels of the examples."""

    @abstractmethod
    def responses(self, requests: Sequence[Request], outputs: Outputs, chosen: Mapping[str, float]) -> Responses:
        """A JSON response for each example; docs/using.md describes its keys.

        Args:
            requests: the requests that contain the examples, in the same order.
            chosen: settings of the evaluation on dev, as in `EvalResult`.
        """


class Head(ABC):
    """The model side of one head: features, loss, evaluation, and its layer in `transformers`.

    The output layer is linear. It reads the pooled [CLS] of a sequence, or every token.
    """

    dataset: type[EvalDataset]
    """Converts examples to features, and evaluates the outputs on them."""
    transformers_class: str
    """The class of `transformers` with the same layers."""
    layer_name = "classifier"
    """The name of the output layer in that class."""
    output_names: tuple[str, ...] = ("logits",)
    """The outputs of that class; several outputs are the columns of the output layer."""
    reads_tokens = False
    """The head reads every token rather than [CLS]."""
    has_dropout = True
    """There is dropout before the output layer."""
    peft_task_type: str | None = None
    """The head's task type in peft's adapter_config.json."""
    averages_probabilities = True
    """An ensemble averages probabilities of exclusive answers; otherwise it averages outputs."""
    is_probed = False
    """Probes during pre-training can measure it: there is one target, a class or a score, for a whole text or pair."""
    default_max_length: int | None = None
    """Longest sequence in prediction for models without a recipe; None for all that the encoder can read."""

    def prepare(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> EvalDataset:
        """Convert examples to features."""
        return self.dataset(row, examples, tokenizer, recipe)

    @abstractmethod
    def majority_scores(self, row: Benchmark, train: Examples, dev: Examples) -> dict[str, float]:
        """Scores on `dev` of a model that always predicts the most frequent (or mean) answer of `train`."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the rows."""

    def num_output_rows(self, features: Features) -> int:
        """Length of the head's outputs: the number of rows, or of tokens for heads that read tokens."""
        return len(features.sequences.values) if self.reads_tokens else features.num_rows

    def mask_padding(self, logits: Tensor, batch: FinetuneBatch) -> Tensor:
        """Logits of tokens, (sequences, length, width), with those of padding excluded if the head needs it."""
        return logits

    def transformers_config(self, row: Benchmark) -> dict[str, Any]:
        """The entries of config.json that describe the outputs to `transformers`."""
        if not row.labels:
            return {}
        return {
            "id2label": {str(number): label for number, label in enumerate(row.labels)},
            "label2id": {label: number for number, label in enumerate(row.labels)},
        }

    def from_transformers(self, row: Benchmark, num_outputs: int, read_labels: ReadLabels) -> Benchmark:
        """The benchmark with the labels of a `transformers` model whose output layer has `num_outputs` rows."""
        return row


def combine(results: Mapping[str, EvalResult]) -> EvalResult:
    """Combine the results on several dev files: each metric with the file's suffix, and the mean over the files."""
    if len(results) == 1 and "" in results:
        return results[""]
    scores: dict[str, float] = {}
    for metric in next(iter(results.values())).scores:
        values = {suffix: result.scores[metric] for suffix, result in results.items()}
        scores[metric] = sum(values.values()) / len(values)
        scores |= {f"{metric}_{suffix}": value for suffix, value in values.items()}
    predictions = [{**record, "part": suffix} for suffix, result in results.items() for record in result.predictions]
    return EvalResult(scores, predictions, all(result.degenerate for result in results.values()))


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Probabilities over the last axis."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
