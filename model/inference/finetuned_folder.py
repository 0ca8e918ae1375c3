"""What a folder with a fine-tuned model says of it: its benchmark, recipe and settings, beside the weights.

A published folder says so in head.json. A folder of `transformers` has none: its labels come from config.json, and the
task has to be said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.table import BENCHMARKS, Benchmark, find
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe

_KNOWN = ("benchmark", "head", "labels", "recipe", "row")
_LONGEST_SPAN_INPUT = 384  # tokens, as the paper's for SQuAD


def _generic(name: str, **row: Any) -> Benchmark:
    files = {
        "train": "",
        "dev": {},
        "test": {},
        "metrics": ("f1" if row["head"] == "tags" else "accuracy",),
        "paper": {},
    }
    return Benchmark(**{**files, "name": name, "title": name, "identity": "id", **row})


KINDS = {
    row.name: row
    for row in (
        _generic("classification", head="classes", first="text"),
        _generic("pair", head="classes", first="text", second="text_pair"),
        _generic("tagging", head="tags", first="text"),
        _generic("span", head="span"),
    )
}
"""Tasks of models that were trained for no benchmark of the table."""


@dataclass(frozen=True)
class Folder:
    """What prediction needs beside weights and tokenizer."""

    row: Benchmark
    recipe: FinetuneRecipe
    chosen: dict[str, float]


def read_folder(directory: Path, task: str | None, tensors: Mapping[str, Tensor], max_positions: int) -> Folder:
    """Read head.json, or make up from config.json and the task what it would say.

    Args:
        tensors: the folder's, as `model.formats.hf_bert.load_tensors` names them.
        max_positions: the longest sequence that the encoder can read.

    Raises:
        UserError: head.json is damaged or of another task; there is none and no task is said; the weights have no head.
    """
    path = directory / "head.json"
    if path.is_file():
        folder = _published(path)
        if task is not None and task != folder.row.name:
            raise UserError(f"{directory}: fine-tuned for '{folder.row.name}', not for '{task}'")
        return folder
    if task is None:
        raise UserError(
            f"{path}: missing; for a folder of transformers say its task: a benchmark ({', '.join(BENCHMARKS)}) "
            f"or one of {', '.join(KINDS)}"
        )
    return _of_transformers(directory, KINDS[task] if task in KINDS else find(task), tensors, max_positions)


def _published(path: Path) -> Folder:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error}); publish the model again (`cloze finetune`)") from None
    if not isinstance(content, dict) or not {"benchmark", "recipe"} <= content.keys():
        raise UserError(f"{path}: expected an object with 'benchmark' and 'recipe'; publish the model again")
    # Folders of before the row was written name it alone.
    row = Benchmark.parse(content["row"], f"{path}: row") if "row" in content else find(content["benchmark"])
    labels = content.get("labels", list(row.labels))
    if labels != list(row.labels):
        raise UserError(
            f"{path}: labels {', '.join(map(str, labels))} where the benchmark '{row.name}' has "
            f"{', '.join(row.labels)}; publish the model again"
        )
    chosen = {name: value for name, value in content.items() if name not in _KNOWN}
    for name, value in chosen.items():
        if not isinstance(value, (int, float)):
            raise UserError(f"{path}: '{name}': expected a number, found {type(value).__name__}")
    return Folder(row, FinetuneRecipe.parse(content["recipe"], f"{path}: recipe"), chosen)


def _of_transformers(directory: Path, row: Benchmark, tensors: Mapping[str, Tensor], max_positions: int) -> Folder:
    name = "qa_outputs" if row.head == "span" else "classifier"
    weight = tensors.get(f"bert.{name}.weight")
    if weight is None:
        raise UserError(f"{directory}: no tensor '{name}.weight'; expected a model with the head of '{row.name}'")
    num_outputs = len(weight)
    if row.head in ("classes", "regression", "tags"):
        if num_outputs == 1 and row.head != "tags":
            row = row.model_copy(update={"head": "regression", "labels": ()})
        else:
            row = row.model_copy(update={"head": "tags" if row.head == "tags" else "classes"})
            row = row.model_copy(update={"labels": _labels(directory, row, num_outputs)})
    expected = HEAD_SPECS[row.head].num_outputs(row)
    if num_outputs != expected:
        raise UserError(f"{directory}: '{name}.weight' has {num_outputs} rows, expected {expected} for '{row.name}'")
    longest = _LONGEST_SPAN_INPUT if row.head == "span" else max_positions
    recipe = {"max_length": longest, **row.paper}
    recipe["max_length"] = min(int(recipe["max_length"]), max_positions)
    return Folder(row, FinetuneRecipe.parse(recipe, f"the task '{row.name}'"), {})


def _labels(directory: Path, row: Benchmark, num_outputs: int) -> tuple[str, ...]:
    """config.json's labels, in the benchmark's own spelling where they differ from it in capitals alone."""
    path = directory / "config.json"
    found = json.loads(path.read_text(encoding="utf-8")).get("id2label")
    if found is None:  # transformers leaves out what is as it comes
        return row.labels if len(row.labels) == num_outputs else tuple(f"LABEL_{n}" for n in range(num_outputs))
    if not isinstance(found, dict) or sorted(found) != sorted(str(number) for number in range(num_outputs)):
        raise UserError(f"{path}: id2label: expected a label for each of the head's {num_outputs} outputs")
    spelt = {label.lower(): label for label in row.labels}
    labels = tuple(str(found[str(number)]) for number in range(num_outputs))
    own = tuple(spelt.get(label.lower(), label) for label in labels)
    return own if set(own) == set(row.labels) else labels
