"""Prediction with a fine-tuned model, published by `model.finetune` or in the `transformers` layout.

from cloze import load_finetuned

sentiment = load_finetuned("build/finetune/pretrained/sst2/model")
sentiment.predict(["a warm, funny film", "two hours that I want back"])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from torch import Tensor

from model.benchmarks.head_specs import HEAD_SPECS, request_of
from model.benchmarks.requests import Request, num_characters
from model.benchmarks.table import BENCHMARKS, Benchmark, find, trained_for
from model.common.errors import UserError
from model.common.files import load_json
from model.config.finetuning import FinetuneRecipe
from model.config.hardware import HardwareOptions
from model.finetune.build import load_head, untrained_model
from model.finetune.prediction import predict
from model.formats.hf_folder import encoder_of, load_config, load_tensors, weights_path
from model.heads.head import EvalDataset, EvalResult
from model.heads.task_model import HEADS, TaskModel
from model.inference.encoding import WINDOW_ROWS, load_tokenizer_for, windowed
from model.tokenizer.wordpiece import special_ids

Located = tuple[str, Any]
"""The location of an input ("row 3", "FILE: line 7"), and the input or the UserError that it caused."""

_HEAD_KEYS = ("benchmark", "head", "labels", "recipe", "row")  # of head.json; other keys are settings chosen on dev

GENERIC_TASKS = {
    name: Benchmark(
        name=name,
        title=name,
        head=head,
        first="text" if columns else "",
        second="text_pair" if columns == 2 else None,
        identity="id",
        train="",
        dev={},
        test={},
        metrics=HEAD_SPECS[head].metrics[:1],
        paper={},
    )
    for name, head, columns in (
        ("classification", "classes", 1),
        ("pair", "classes", 2),
        ("tagging", "tags", 1),
        ("span", "span", 0),
    )
}
"""Generic tasks, for models that were not trained on a benchmark of the table."""


@dataclass(frozen=True)
class Finetuned:
    """A fine-tuned model with everything that prediction needs."""

    directory: Path
    model: TaskModel
    """The encoder with its head, on its device, in evaluation mode."""
    tokenizer: Tokenizer
    """The tokenizer, without truncation and padding."""
    row: Benchmark
    """The benchmark that the model was trained for."""
    recipe: FinetuneRecipe
    """The training recipe; prediction uses its lengths and strides."""
    chosen: dict[str, float] = field(default_factory=dict)
    """Settings chosen on dev: `null_threshold` for questions that may have no answer."""
    bf16: bool = False
    """Compute matrix products in bf16."""

    def predict(self, rows: Iterable[Any]) -> list[dict[str, Any]]:
        """Return a response for each row, in order; `model.benchmarks.head_specs.request_of` lists the forms of a row.

        Args:
            rows: the rows; a single text or mapping is one row.

        Raises:
            UserError: a row does not fit the benchmark; the message gives its number, counted from 0.
        """
        rows = [rows] if isinstance(rows, str | Mapping) else rows
        return list(self.stream((f"row {number}", row) for number, row in enumerate(rows)))

    def stream(
        self, rows: Iterable[Located], *, window_rows: int = WINDOW_ROWS, skip_bad: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield responses in the order of the rows, one window of rows at a time, for inputs of any length.

        Args:
            rows: location and value of each row; the value is a UserError if the row could not be read.
            window_rows: rows per window. The first response follows when a window is full or the rows end.
            skip_bad: yield {"error": message} for invalid rows instead of raising.

        Raises:
            UserError: the first invalid row, unless `skip_bad`.
        """
        for requests in windowed((self._request(*row, skip_bad) for row in rows), num_characters, window_rows):
            found = iter(self._respond([one for one in requests if isinstance(one, Request)]))
            yield from (next(found) if isinstance(one, Request) else one for one in requests)

    def _request(self, where: str, given: Any, skip_bad: bool) -> Request | dict[str, Any]:
        try:
            if isinstance(given, UserError):
                raise given
            return request_of(self.row, given)
        except UserError as error:
            if skip_bad:
                return {"error": f"{where}: {error}"}
            raise UserError(f"{where}: {error}") from None

    def _respond(self, requests: Sequence[Request]) -> list[dict[str, Any]]:
        if not requests:
            return []
        dataset, outputs = self._outputs([request.example for request in requests])
        return [
            response if request.id is None else {"id": request.id, **response}
            for request, response in zip(requests, dataset.responses(requests, outputs, self.chosen), strict=True)
        ]

    def evaluate(self, examples: Sequence[Any]) -> EvalResult:
        """Return the official scores and predictions on labeled examples, as the fine-tuning job computes them."""
        dataset, outputs = self._outputs(examples)
        return dataset.evaluate(outputs, self.chosen)

    def _outputs(self, examples: Sequence[Any]) -> tuple[EvalDataset, npt.NDArray[np.float32]]:
        """Compute the features of the examples and the head's outputs, (rows, width) or (tokens, width)."""
        dataset = HEADS[self.row.head].prepare(self.row, examples, self.tokenizer, self.recipe)
        return dataset, predict(self.model, dataset.features, special_ids(self.tokenizer).pad, self.bf16)


def load_finetuned(
    directory: str | Path, task: str | None = None, *, machine: HardwareOptions | None = None
) -> Finetuned:
    """Load a fine-tuned model.

    Args:
        directory: a published model (build/finetune/<encoder>/<benchmark>/model), or a model of `transformers` with
            BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering or
            BertForMultipleChoice.
        task: required for models of `transformers`: a benchmark of the table, or one of `classification`, `pair`,
            `tagging` and `span`. Published models record their task.
        machine: device, precision and threads; 0 threads leave torch's setting unchanged.

    Raises:
        UserError: a file is missing or damaged, the model has no such head, or it was trained for another task.
    """
    directory = Path(directory)
    config = load_config(directory)
    tensors = load_tensors(directory, config.vocab_size)
    row, recipe, chosen = _read_task(directory, task, tensors, config.max_position_embeddings)
    tokenizer, hardware = load_tokenizer_for(directory, config.vocab_size, machine)
    model = untrained_model(encoder_of(config, tensors, weights_path(directory)), row, recipe)
    load_head(model, directory, tensors)
    model = model.to(hardware.device).eval()
    return Finetuned(directory, model, tokenizer, row, recipe, chosen, hardware.precision == "bf16")


def _read_task(
    directory: Path, task: str | None, tensors: Mapping[str, Tensor], max_positions: int
) -> tuple[Benchmark, FinetuneRecipe, dict[str, float]]:
    """Read the benchmark, recipe and chosen settings from head.json, or from config.json and the given task."""
    path = directory / "head.json"
    if path.is_file():
        found = _read_head_json(path)
        if task is not None and task != found[0].name:
            raise UserError(f"{directory}: fine-tuned for '{found[0].name}', not for '{task}'")
        if found[1].max_length > max_positions:
            raise UserError(
                f"{path}: recipe: max_length {found[1].max_length}: the encoder reads {max_positions} tokens"
            )
        return found
    if task is None:
        raise UserError(
            f"{path}: missing; give the task of a model of transformers: a benchmark ({', '.join(BENCHMARKS)}) "
            f"or one of {', '.join(GENERIC_TASKS)}"
        )
    row = GENERIC_TASKS[task] if task in GENERIC_TASKS else find(task)
    head = HEADS[row.head]
    weight = tensors.get(f"bert.{head.layer_name}.weight")
    if weight is None or weight.ndim == 0:
        kind = "no tensor" if weight is None else "a scalar"
        raise UserError(
            f"{weights_path(directory)}: {kind} '{head.layer_name}.weight'; "
            f"expected a model with the head of '{row.name}'"
        )
    num_outputs = len(weight)
    row = head.from_transformers(row, num_outputs, lambda: _read_labels(directory, row, num_outputs))
    expected = HEAD_SPECS[row.head].num_outputs(row)
    if num_outputs != expected:
        raise UserError(
            f"{directory}: '{head.layer_name}.weight' has {num_outputs} rows, expected {expected} for '{row.name}'"
        )
    values = {"max_length": HEADS[row.head].default_max_length or max_positions, **row.paper}
    values["max_length"] = min(int(values["max_length"]), max_positions)
    return row, FinetuneRecipe.parse(values, f"the task '{row.name}'"), {}


def _read_head_json(path: Path) -> tuple[Benchmark, FinetuneRecipe, dict[str, float]]:
    content = load_json(path, remedy="; publish the model again (`cloze finetune`)")
    if not isinstance(content, dict) or "recipe" not in content or not isinstance(content.get("benchmark"), str):
        raise UserError(f"{path}: expected an object with 'benchmark' and 'recipe'; publish the model again")
    row = trained_for(content, str(path))
    if row.head not in HEAD_SPECS:
        raise UserError(f"{path}: row: unknown head '{row.head}'; known: {', '.join(HEAD_SPECS)}")
    labels = content.get("labels", list(row.labels))
    if not isinstance(labels, list):
        raise UserError(f"{path}: labels: expected a list, found {type(labels).__name__}; publish the model again")
    if labels != list(row.labels):
        raise UserError(
            f"{path}: labels {', '.join(map(str, labels))} where the benchmark '{row.name}' has "
            f"{', '.join(row.labels)}; publish the model again"
        )
    chosen = {name: value for name, value in content.items() if name not in _HEAD_KEYS}
    for name, value in chosen.items():
        if not isinstance(value, int | float):
            raise UserError(f"{path}: '{name}': expected a number, found {type(value).__name__}")
    return row, FinetuneRecipe.parse(content["recipe"], f"{path}: recipe"), chosen


def _read_labels(directory: Path, row: Benchmark, num_outputs: int) -> tuple[str, ...]:
    """Read the labels from config.json; those of the benchmark, or its names for them, get the benchmark's spelling."""
    path = directory / "config.json"
    found = load_json(path).get("id2label")
    if found is None:  # transformers omits default labels
        return row.labels if len(row.labels) == num_outputs else tuple(f"LABEL_{n}" for n in range(num_outputs))
    if not isinstance(found, dict) or sorted(found) != sorted(str(number) for number in range(num_outputs)):
        raise UserError(f"{path}: id2label: expected a label for each of the head's {num_outputs} outputs")
    by_lower_case = {spelling.lower(): label for label in row.labels for spelling in (row.label_name(label), label)}
    labels = tuple(str(found[str(number)]) for number in range(num_outputs))
    spelled = tuple(by_lower_case.get(label.lower(), label) for label in labels)
    return spelled if set(spelled) == set(row.labels) else labels
