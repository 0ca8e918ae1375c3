"""The interface of a fine-tuning head and the result of evaluating its outputs."""

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
from model.config.finetuning import Batches, FinetuneRecipe
from model.heads.batches import FinetuneBatch
from model.heads.features import Features

DIGITS = 6  # decimals of the probabilities and scores in responses

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
    """True if the model gives every row the same answer although the labels differ."""
    chosen: dict[str, float] = field(default_factory=dict)
    """Settings chosen on dev, such as `null_threshold`."""
    documents: Callable[[], dict[str, Any]] = dict
    """Creates the benchmark's official files: JSON documents by file name without extension."""


class EvalDataset(ABC):
    """Features of a list of examples, and the evaluation of a model's outputs on them.

    Raises:
        UserError: the recipe's `max_length` is too short for the texts.
    """

    features: Features

    @abstractmethod
    def __init__(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> None: ...

    @abstractmethod
    def evaluate(self, outputs: Outputs, chosen: Mapping[str, float] | None = None) -> EvalResult:
        """Score the outputs against the labels of the examples.

        Args:
            chosen: settings from the evaluation on other examples; None chooses them on these examples.
        """

    @abstractmethod
    def responses(self, requests: Sequence[Request], outputs: Outputs, chosen: Mapping[str, float]) -> Responses:
        """Return a JSON response for each example; docs/using.md describes its keys.

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
    """The `transformers` class with the same layers."""
    layer_name = "classifier"
    """The name of the output layer in that class."""
    output_names: tuple[str, ...] = ("logits",)
    """The output names of that class; multiple outputs are the columns of the output layer."""
    reads_tokens = False
    """The head reads every token rather than [CLS]."""
    batches: Batches = "shuffled"
    """Composition of training batches, unless the recipe sets it."""
    has_dropout = True
    """Apply dropout before the output layer."""
    peft_task_type: str | None = None
    """The head's task type in peft's adapter_config.json."""
    averages_probabilities = True
    """Ensembles average the probabilities of mutually exclusive answers instead of raw outputs."""
    is_probed = False
    """Pre-training probes support this head, because a text or pair has a single target: a class or a score."""
    default_max_length: int | None = None
    """Maximum length in prediction for models without a recipe; None for the encoder's maximum."""

    def prepare(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> EvalDataset:
        """Convert examples to features."""
        return self.dataset(row, examples, tokenizer, recipe)

    @abstractmethod
    def majority_scores(self, row: Benchmark, train: Examples, dev: Examples) -> dict[str, float]:
        """Score a model on `dev` that always predicts the most frequent (or mean) answer of `train`."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the rows."""

    def num_output_rows(self, features: Features) -> int:
        """Return the length of the outputs: the number of rows, or of tokens if the head reads tokens."""
        return len(features.sequences.values) if self.reads_tokens else features.num_rows

    def mask_padding(self, logits: Tensor, batch: FinetuneBatch) -> Tensor:
        """Mask the logits of padding, (sequences, length, width), if the head requires it."""
        return logits

    def transformers_config(self, row: Benchmark) -> dict[str, Any]:
        """Return the config.json entries that describe the outputs to `transformers`."""
        if not row.labels:
            return {}
        return {
            "id2label": {str(number): label for number, label in enumerate(row.labels)},
            "label2id": {label: number for number, label in enumerate(row.labels)},
        }

    def from_transformers(self, row: Benchmark, num_outputs: int, read_labels: ReadLabels) -> Benchmark:
        """Return the benchmark with the labels of a `transformers` model with `num_outputs` outputs."""
        return row


def combine(results: Mapping[str, EvalResult]) -> EvalResult:
    """Merge the results on several dev files: each metric with the file's suffix, and the mean over files."""
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
    """Compute probabilities over the last axis."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
