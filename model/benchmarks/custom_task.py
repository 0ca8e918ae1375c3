"""Your own task: a YAML file below the data folder that becomes a row like those of the table.

Its labels, where it does not give them, are those of the training file in sorted order; the row then holds them, and a
job carries the row, so that nothing later depends on how they were found.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator

from model.benchmarks.benchmark import Benchmark, Head
from model.benchmarks.custom.head_options import HEADS
from model.benchmarks.custom.label_sets import found_labels, whole_entities
from model.benchmarks.readers.labels import spelt
from model.benchmarks.sources import matches
from model.benchmarks.table import BENCHMARKS, find
from model.common.config_base import Settings
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe

YAML_ENDINGS = (".yaml", ".yml")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_SPLITS = {"train": ("train",), "dev": ("validation", "dev", "valid", "val"), "test": ("test",)}
_SPLIT_ENDINGS = ("", ".jsonl", ".csv", ".tsv")  # "": the hub's Parquet files of the split


class CustomTask(Settings):
    """A task of your own. The file's name without .yaml is its name; paths are relative to the file's folder."""

    title: str = ""
    """The name in tables; the file's name if left out."""
    head: Head
    """What is predicted: classes (one of some labels for a text or a pair), regression (a number), choice (the right
    one of several endings), span (the answer in a context), tags (a label for each word)."""
    folder: str = ""
    """A folder with the splits of a data set of the hub: train, validation (or dev, valid, val) and test, each as
    Parquet files, or as a .jsonl, .csv or .tsv file. In place of train, dev and test."""
    train: str = ""
    """Training file: .csv, .tsv (quotes are letters), .jsonl or .parquet; for span also SQuAD's .json, for tags also
    .txt or .conll with a word per line. A `*` takes all files that fit."""
    dev: str = ""
    """Development file; none with dev_share."""
    test: str = ""
    """Test file, with or without labels; it may be left out."""
    dev_share: float | None = Field(default=None, gt=0, lt=1)
    """Judge by this share of the training rows, always the same ones, where there is no development file."""
    columns: dict[str, str | list[str]] = {}
    """Which column of the files is what; docs/add-a-benchmark.md lists the names for each head."""
    labels: list[str] = []
    """The labels as the files spell them, in the order of the head's outputs; left out, those of the training file in
    sorted order. For choice what the label column calls the endings, in their order; left out, 0, 1, 2 and so on."""
    label_names: list[str] = []
    """What the numbers in the label column stand for, from 0, where the files hold numbers and say no names."""
    positive: str = ""
    """The label whose f1 is reported."""
    unanswerable: bool = False
    """For span: whether a question may have no answer."""
    metrics: list[str] = []
    """What is reported, the headline first; the head's usual ones if left out."""
    recipe: dict[str, Any] = {}
    """Settings of the fine-tuning recipe for this task, over those of all tasks in params.yaml."""
    grid: dict[str, list[int | float]] | Literal["paper"] | None = None
    """The values to try, best on dev; left out, the grid of all tasks in params.yaml."""

    @field_validator("labels", "label_names", mode="before")
    @classmethod
    def _labels_are_text(cls, given: Any) -> Any:
        if not isinstance(given, list):
            return given
        for label in given:
            if isinstance(label, bool):
                raise ValueError(f"YAML reads a bare yes, no, on, off, true or false as {label}: put it in quotes")
        return [spelt(label) for label in given]


@dataclass(frozen=True)
class CustomBenchmark:
    """An own task, resolved: its row, and what it says about the recipe."""

    row: Benchmark
    recipe: dict[str, Any]
    grid: dict[str, list[int | float]] | Literal["paper"] | None


def is_custom(name: str) -> bool:
    """Whether a benchmark's name is the path of a YAML file."""
    return name.endswith(YAML_ENDINGS)


def row_of(name: str, data_dir: Path) -> Benchmark:
    """The row of a benchmark of the table, or of an own task by its YAML file's path below the data folder.

    Raises:
        UserError: there is none, or the file is wrong.
    """
    return load_custom(name, data_dir).row if is_custom(name) else find(name)


def load_custom(name: str, data_dir: Path) -> CustomBenchmark:
    """The own task of the YAML file `name`, relative to the data folder.

    Raises:
        UserError: the file is missing or wrong, or its training file is; one line that names it.
    """
    path = data_dir / name
    if _inside(name) is None:
        raise UserError(f"{path}: lies outside the data folder; put it below {data_dir}, so that it is pinned with it")
    task = CustomTask.parse(_read(path), str(path))
    if not _NAME.fullmatch(path.stem):
        raise UserError(f"{path}: the file's name names the task: letters, digits, - and _ alone, at most 40")
    if path.stem in BENCHMARKS:
        raise UserError(f"{path}: {path.stem} is a benchmark of the table; give the file another name")
    row = _row(task, path, name, data_dir)
    for point in ({}, *({key: value} for key, values in _grid_items(task) for value in values)):
        FinetuneRecipe.parse({**row.paper, **task.recipe, **point}, f"{path}: {'grid' if point else 'recipe'}")
    return CustomBenchmark(row, task.recipe, task.grid)


def _row(task: CustomTask, path: Path, name: str, data_dir: Path) -> Benchmark:
    kind = HEADS[task.head]
    columns = _columns(task, path)
    files = _files(task, path, name, data_dir)
    row = Benchmark(
        name=path.stem,
        title=task.title or path.stem,
        head=task.head,
        train=files["train"],
        dev={"": files["dev"]},
        dev_share=task.dev_share,
        test={"": files["test"]} if files["test"] else {},
        **columns,
        classes={label: label for label in task.label_names},
        labels=tuple(task.labels),
        positive=task.positive or None,
        skips_malformed=True,
        skips_empty=True,
        unanswerable=task.unanswerable,
        metrics=tuple(task.metrics) or kind.metrics,
        paper=kind.paper,
        grid=kind.grid,
    )
    return _with_labels(row, task, path, data_dir)


def _with_labels(row: Benchmark, task: CustomTask, path: Path, data_dir: Path) -> Benchmark:
    """The row with its labels and the metrics that go with them."""
    if row.head in ("regression", "span"):
        for key in ("labels", "label_names", "positive"):
            if getattr(task, key):
                raise UserError(f"{path}: {key}: {row.head} has no labels; leave it out")
        labels: tuple[str, ...] = ()
    else:
        labels = row.labels or found_labels(row, data_dir)
    if len(set(labels)) < len(labels):
        raise UserError(f"{path}: labels: one of them stands there twice")
    metrics = row.metrics
    if row.head == "tags":
        labels, are_entities = whole_entities(labels)
        if not task.metrics and not are_entities:
            metrics = ("accuracy",)
        if "accuracy" not in metrics and not are_entities:
            odd = next((label for label in labels if label != "O" and label[:2] not in ("B-", "I-")), labels[0])
            raise UserError(f"{path}: metrics: {metrics[0]} counts entities, tagged O, B-x and I-x; found {odd!r}")
    if row.head == "choice" and len(row.endings) not in (1, len(labels)):
        raise UserError(f"{path}: labels: {len(labels)} of them for {len(row.endings)} columns of endings")
    allowed = HEADS[row.head].all_metrics
    for metric in metrics:
        if metric not in allowed:
            raise UserError(f"{path}: metrics: unknown '{metric}'; {_nearest(metric, allowed)}")
    if row.head == "tags" and "accuracy" in metrics and len(metrics) > 1:
        raise UserError(f"{path}: metrics: accuracy of words does not go with the scores of entities; take one kind")
    if "f1" in metrics and row.head == "classes" and not row.positive:
        raise UserError(f"{path}: f1 is that of one label: name it with `positive` (macro_f1 is the mean over all)")
    if row.positive and row.positive not in labels:
        raise UserError(f"{path}: positive: '{row.positive}' is no label; the labels are {', '.join(labels)}")
    return row.model_copy(update={"labels": labels, "metrics": metrics})


def _columns(task: CustomTask, path: Path) -> dict[str, Any]:
    """The fields of Benchmark that name columns."""
    kind = HEADS[task.head]
    for key in task.columns:
        if key not in kind.columns:
            raise UserError(f"{path}: columns: unknown '{key}' for {task.head}; {_nearest(key, kind.columns)}")
    found: dict[str, Any] = {}
    for key, (field, default) in kind.columns.items():
        value = task.columns.get(key, default)
        if isinstance(value, list) and field != "endings":
            raise UserError(f"{path}: columns.{key}: one column was expected, got a list")
        found[field] = value
        if field == "endings":
            found[field] = (value,) if isinstance(value, str) else tuple(value or ())
    return found


def _files(task: CustomTask, path: Path, name: str, data_dir: Path) -> dict[str, str]:
    """The files of train, dev and test relative to the data folder; "" for none."""
    given = {part: getattr(task, part) for part in _SPLITS}
    if task.folder:
        if any(given.values()):
            raise UserError(f"{path}: folder names all parts; leave out train, dev and test")
        base = _below(task.folder, "folder", path, name)
        found = {part: _split(data_dir, base, names) for part, names in _SPLITS.items()}
        if not found["train"]:
            raise UserError(
                f"{path}: folder: no split 'train' in {data_dir / base}; expected Parquet files, or train.csv"
            )
    else:
        found = {part: _below(value, part, path, name) if value else "" for part, value in given.items()}
        if not found["train"]:
            raise UserError(f"{path}: neither train nor folder says where the training rows are")
    if task.dev_share is not None:
        if given["dev"]:
            raise UserError(f"{path}: dev and dev_share: give one of them")
        found["dev"] = found["train"]
    if not found["dev"]:
        raise UserError(
            f"{path}: no development rows; name a file with dev, or a share of the training rows: dev_share"
        )
    for part, value in found.items():
        if value and not matches(data_dir, value):
            raise UserError(f"{path}: {part}: no such file: {data_dir / value}")
    return found


def _split(data_dir: Path, base: str, names: tuple[str, ...]) -> str:
    for folder in (base, f"{base}/data"):
        for name in names:
            for ending in _SPLIT_ENDINGS:
                if matches(data_dir, f"{folder}/{name}{ending}"):
                    return f"{folder}/{name}{ending}"
    return ""


def _below(value: str, key: str, path: Path, name: str) -> str:
    found = _inside((Path(name).parent / value).as_posix())
    if found is None:
        raise UserError(f"{path}: {key}: '{value}' lies outside the data folder; data that is not pinned is not read")
    return found


def _inside(name: str) -> str | None:
    """A path without detours, if it stays below the data folder."""
    whole = os.path.normpath(name)
    return None if whole.startswith("..") or Path(whole).is_absolute() else whole


def _grid_items(task: CustomTask) -> list[tuple[str, list[int | float]]]:
    return list(task.grid.items()) if isinstance(task.grid, dict) else []


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected the YAML file of an own task") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
