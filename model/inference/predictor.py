"""A fine-tuned model that answers: what `model.finetune.output` published, or such a model of `transformers`.

from model import load_finetuned

sentiment = load_finetuned("build/finetune/pretrained/sst2/model")
sentiment.predict(["a warm, funny film", "two hours that I want back"])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from model.benchmarks.head_specs import request_of
from model.benchmarks.requests import Request, num_characters
from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.common.windowing import WINDOW_ROWS, windowed
from model.config.finetuning import FinetuneRecipe
from model.config.hardware import HardwareOptions
from model.finetune.build import untrained_model
from model.finetune.frozen_features import FeatureModel
from model.finetune.loop import predict
from model.formats.hf_bert import encoder_of, fill, load_config, load_tensors, weights_path
from model.heads.evaluation import EvalDataset, EvalResult
from model.heads.prepare import prepare
from model.heads.task_model import TaskModel
from model.inference.encoding import placed
from model.inference.finetuned_folder import read_folder
from model.inference.responses import replies
from model.tokenizer.wordpiece import load_tokenizer, special_ids

Placed = tuple[str, Any]  # where something was found ("row 3", "FILE: line 7"), and what it is or the UserError it made


@dataclass(frozen=True)
class Finetuned:
    """A model with all that prediction needs."""

    directory: Path
    """Where it was loaded from."""
    model: TaskModel
    """The encoder with its head, on its device, in evaluation mode."""
    tokenizer: Tokenizer
    """Without truncation and padding."""
    row: Benchmark
    """The benchmark that it was trained for."""
    recipe: FinetuneRecipe
    """How it was trained; lengths and strides are those of prediction."""
    chosen: dict[str, float] = field(default_factory=dict)
    """Settings found on dev: `null_threshold` for questions that may have no answer."""
    bf16: bool = False
    """Whether matrix products are computed in bf16."""

    def predict(self, rows: Iterable[Any]) -> list[dict[str, Any]]:
        """An answer for each row, in order; see `model.benchmarks.head_specs.request_of` for what a row may be.

        Raises:
            UserError: a row is not what the benchmark asks for; the message names it, counted from 0.
        """
        return list(self.stream((f"row {number}", row) for number, row in enumerate(rows)))

    def stream(
        self, rows: Iterable[Placed], *, window_rows: int = WINDOW_ROWS, skip_bad: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Answers in the order of the rows, one window of them at a time, so that any number of rows goes through.

        Args:
            rows: where each was found and what it is; or, in its place, the UserError that reading it made.
            window_rows: rows answered together. The first answer comes when so many have been read, or the last.
            skip_bad: answer {"error": message} to rows that cannot be asked, instead of raising.

        Raises:
            UserError: the first bad row, unless `skip_bad`.
        """
        for window in windowed(rows, lambda placed: num_characters(placed[1]), window_rows):
            asked = [self._asked(*placed, skip_bad) for placed in window]
            found = iter(self.answer([one for one in asked if isinstance(one, Request)]))
            yield from (next(found) if isinstance(one, Request) else one for one in asked)

    def answer(self, asked: Sequence[Request]) -> list[dict[str, Any]]:
        """Answers, all rows at once."""
        if not asked:
            return []
        prepared = self.prepare([one.example for one in asked])
        return replies(self.row, asked, prepared, self.outputs(prepared), self.chosen)

    def evaluate(self, examples: Sequence[Any]) -> EvalResult:
        """Official scores and predictions on labelled examples, as the fine-tuning job gives them."""
        prepared = self.prepare(examples)
        return prepared.evaluate(self.outputs(prepared))

    def prepare(self, examples: Sequence[Any]) -> EvalDataset:
        """Features as in training."""
        return prepare(self.row, examples, self.tokenizer, self.recipe)

    def outputs(self, prepared: EvalDataset) -> npt.NDArray[np.float32]:
        """The head's outputs: (rows, width), or (tokens, width) for span and tags."""
        return predict(self.model, prepared.features, special_ids(self.tokenizer).pad, self.bf16)

    def _asked(self, where: str, given: Any, skip_bad: bool) -> Request | dict[str, Any]:
        error = given
        if not isinstance(given, UserError):
            try:
                return request_of(self.row, given)
            except UserError as found:
                error = found
        if skip_bad:
            return {"error": f"{where}: {error}"}
        raise UserError(f"{where}: {error}")


def load_finetuned(
    directory: str | Path, task: str | None = None, *, machine: HardwareOptions | None = None
) -> Finetuned:
    """A fine-tuned model of a folder.

    Args:
        directory: a published one (build/finetune/<encoder>/<benchmark>/model), or one of `transformers` with
            BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering or
            BertForMultipleChoice.
        task: for a folder of `transformers`, a benchmark of the table, or one of `classification`, `pair`, `tagging`
            and `span`; a published folder knows its own.
        machine: device, precision and threads; with 0 threads torch's own number is left as it is.

    Raises:
        UserError: a file is missing or damaged, the folder holds an encoder without such a head, or the task is not
            what the folder was trained for.
    """
    directory = Path(directory)
    config = load_config(directory)
    tensors, source = load_tensors(directory, config.vocab_size), weights_path(directory)
    folder = read_folder(directory, task, tensors, config.max_position_embeddings)
    tokenizer = load_tokenizer(directory)
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise UserError(
            f"{directory}: the tokenizer has {tokenizer.get_vocab_size()} tokens, the encoder {config.vocab_size}; "
            "take both from one folder"
        )
    hardware = placed(machine)
    model = untrained_model(encoder_of(config, tensors, source), folder.row, folder.recipe)
    if isinstance(model, FeatureModel):
        model.load_head(directory)
    else:
        head = {name: [f"bert.{model.head_name}.{name}"] for name in ("weight", "bias")}
        fill(model.classifier, head, tensors, source)
    return Finetuned(
        directory=directory,
        model=model.to(hardware.device).eval(),
        tokenizer=tokenizer,
        row=folder.row,
        recipe=folder.recipe,
        chosen=folder.chosen,
        bf16=hardware.precision == "bf16",
    )
