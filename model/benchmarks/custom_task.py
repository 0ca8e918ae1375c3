"""Custom tasks: YAML files below the data folder that become benchmarks like those of the table.

If a file lists no labels, they are read from the training file and sorted. The resulting `Benchmark` contains the
labels and is part of each job, so later code does not depend on their origin.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.head_specs.base import HeadSpec
from model.benchmarks.readers.row_reader import spelled
from model.benchmarks.sources import matches
from model.benchmarks.table import BENCHMARKS, Benchmark, find
from model.common.bounds import NUMBER, FilePath, Line
from model.common.config_base import Settings
from model.common.errors import UserError
from model.common.yaml_text import parse_yaml, read_text
from model.config.finetuning import FinetuneRecipe

_SPLITS = {"train": ("train",), "dev": ("validation", "dev", "valid", "val"), "test": ("test",)}
_SPLIT_ENDINGS = ("", ".jsonl", ".csv", ".tsv")  # "": the hub's Parquet files of the split


class CustomTask(Settings):
    """A custom task, named after its file without .yaml. Paths are relative to the file's folder."""

    title: Line = ""
    """Name in tables; defaults to the file's name."""
    head: Line
    """The kind of prediction: classes (one of several labels for a text or a pair), regression (a number), choice (the
    right one of several endings), span (the answer in a context), tags (a label for each word)."""
    folder: FilePath = ""
    """A folder with the splits of a hub dataset: train, validation (or dev, valid, val) and test, each as Parquet files
    or as a .jsonl, .csv or .tsv file. Replaces train, dev and test."""
    train: FilePath = ""
    """Training file: .csv, .tsv (quotes are ordinary characters), .jsonl or .parquet; for span also SQuAD's .json, for
    tags also .txt or .conll with one word per line. A `*` matches several files."""
    dev: FilePath = ""
    """Development file; leave it out if you set dev_share."""
    test: FilePath = ""
    """Test file, with or without labels; optional."""
    dev_share: Annotated[float, Field(gt=0, lt=1), NUMBER] | None = None
    """Without a development file: evaluate on this share of the training rows, always the same rows."""
    columns: dict[str, str | list[str]] = {}
    """The columns of the files by their role; docs/add-a-benchmark.md lists the roles for each head."""
    header: list[str] = []
    """The names of all columns, in order, if the .csv or .tsv files have no header line."""
    labels: list[str] = []
    """The labels as spelled in the files, in the order of the head's outputs; defaults to those of the training file in
    sorted order. For choice, the names of the endings in the label column, in their order; defaults to 0, 1, 2, ..."""
    label_names: list[str] = []
    """The meaning of the numbers in the label column, from 0, if the files hold numbers without names."""
    positive: Line = ""
    """The label for which f1 is reported."""
    unanswerable: bool = False
    """For span: questions may have no answer."""
    metrics: list[str] = []
    """The reported metrics, headline first; defaults to the usual ones of the head."""
    recipe: dict[str, Any] = {}
    """Settings of the fine-tuning recipe for this task; they override those in params.yaml."""
    grid: dict[str, list[bool | int | float]] | Literal["paper"] | None = None
    """The values to try; the best on dev is published. Defaults to the grid in params.yaml."""

    @field_validator("labels", "label_names", mode="before")
    @classmethod
    def _labels_are_text(cls, given: Any) -> Any:
        if not isinstance(given, list):
            return given
        for label in given:
            if isinstance(label, bool):
                raise ValueError(f"YAML reads a bare yes, no, on, off, true or false as {label}: put it in quotes")
        return [spelled(label) for label in given]


@dataclass(frozen=True)
class CustomBenchmark:
    """A resolved custom task: its benchmark and its recipe settings."""

    row: Benchmark
    recipe: dict[str, Any]
    grid: dict[str, list[bool | int | float]] | Literal["paper"] | None


def is_custom(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def row_of(name: str, data_dir: Path) -> Benchmark:
    """Find the benchmark called `name`, or the custom task in the YAML file with this path in the data folder.

    Raises:
        UserError: there is no such benchmark, or the file is invalid.
    """
    return load_custom(name, data_dir).row if is_custom(name) else find(name)


def load_custom(name: str, data_dir: Path) -> CustomBenchmark:
    """Load the custom task of the YAML file `name`, relative to the data folder.

    Raises:
        UserError: the file or its training file is missing or invalid; the message names the file.
    """
    path = data_dir / name
    if _inside(name) is None:
        raise UserError(f"{path}: is outside the data folder; move it below {data_dir}, so that DVC tracks it")
    task = CustomTask.parse(_read(path), str(path))
    if task.head not in HEAD_SPECS:
        raise UserError(f"{path}: head: unknown '{task.head}'; {_nearest(task.head, HEAD_SPECS)}")
    spec = HEAD_SPECS[task.head]
    with _located(path):
        row = _row(task, spec, Path(name), data_dir)
    if spec.has_labels and not row.labels:
        row = row.model_copy(update={"labels": spec.find_labels(row, data_dir)})
    with _located(path):
        row = _completed(row, task, spec)
    grid = task.grid.items() if isinstance(task.grid, dict) else ()
    for point in ({}, *({key: value} for key, values in grid for value in values)):
        FinetuneRecipe.parse({**row.paper, **task.recipe, **point}, f"{path}: {'grid' if point else 'recipe'}")
    return CustomBenchmark(row, task.recipe, task.grid)


@contextlib.contextmanager
def _located(path: Path) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _row(task: CustomTask, spec: HeadSpec, name: Path, data_dir: Path) -> Benchmark:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name.stem):
        raise UserError("a task's file name may contain only letters, digits, - and _, at most 40 characters")
    if name.stem in BENCHMARKS:
        raise UserError(f"{name.stem} is a built-in benchmark; rename the file")
    paper = BENCHMARKS[spec.paper_benchmark]
    columns = _columns(task, spec)
    files = _files(task, name.parent, data_dir)
    return Benchmark(
        name=name.stem,
        title=task.title or name.stem,
        head=task.head,
        train=files["train"],
        dev={"": files["dev"]},
        dev_share=task.dev_share,
        test={"": files["test"]} if files["test"] else {},
        **columns,
        columns=tuple(task.header) or None,
        classes={label: label for label in task.label_names},
        labels=tuple(task.labels),
        positive=task.positive or None,
        skips_malformed=True,
        skips_empty=True,
        unanswerable=task.unanswerable,
        metrics=tuple(task.metrics) or spec.metrics,
        paper=paper.paper,
        grid=paper.grid,
    )


def _completed(row: Benchmark, task: CustomTask, spec: HeadSpec) -> Benchmark:
    if not spec.has_labels:
        for key in ("labels", "label_names", "positive"):
            if getattr(task, key):
                raise UserError(f"{key}: {row.head} has no labels; remove it")
    if len(set(row.labels)) < len(row.labels):
        raise UserError("labels: a label is listed twice")
    for metric in task.metrics:
        if metric not in spec.all_metrics:
            raise UserError(f"metrics: unknown '{metric}'; {_nearest(metric, spec.all_metrics)}")
    row = spec.complete_custom(row, default_metrics=not task.metrics)
    if row.positive and row.positive not in row.labels:
        raise UserError(f"positive: '{row.positive}' is not a label; the labels are {', '.join(row.labels)}")
    return row


def _columns(task: CustomTask, spec: HeadSpec) -> dict[str, Any]:
    for key in task.columns:
        if key not in spec.custom_columns:
            raise UserError(f"columns: unknown '{key}' for {task.head}; {_nearest(key, spec.custom_columns)}")
    found: dict[str, Any] = {}
    for key, (field, default) in spec.custom_columns.items():
        value = task.columns.get(key, default)
        if field == "endings":
            value = [value] if isinstance(value, str) else value
        elif isinstance(value, list):
            raise UserError(f"columns.{key}: expected one column, got a list")
        found[field] = value
    return found


def _files(task: CustomTask, folder: Path, data_dir: Path) -> dict[str, str]:
    given = {part: getattr(task, part) for part in _SPLITS}
    if task.folder:
        if any(given.values()):
            raise UserError("folder replaces train, dev and test; remove them")
        base = _below(folder, task.folder, "folder")
        found = {part: _split(data_dir, base, names) for part, names in _SPLITS.items()}
        if not found["train"]:
            raise UserError(f"folder: no split 'train' in {data_dir / base}; expected Parquet files, or train.csv")
    else:
        found = {part: _below(folder, value, part) if value else "" for part, value in given.items()}
        if not found["train"]:
            raise UserError("no training rows; set train or folder")
    if task.dev_share is not None:
        if given["dev"]:
            raise UserError("dev and dev_share cannot both be set; remove one")
        found["dev"] = found["train"]
    if not found["dev"]:
        raise UserError("no development rows; set dev to a file, or dev_share to a share of the training rows")
    for part, value in found.items():
        if value and not matches(data_dir, value):
            raise UserError(f"{part}: no such file: {data_dir / value}")
    return found


def _split(data_dir: Path, base: str, names: tuple[str, ...]) -> str:
    candidates = itertools.product((base, f"{base}/data"), names, _SPLIT_ENDINGS)
    paths = (f"{folder}/{name}{ending}" for folder, name, ending in candidates)
    return next((path for path in paths if matches(data_dir, path)), "")


def _below(folder: Path, value: str, key: str) -> str:
    found = _inside((folder / value).as_posix())
    if found is None:
        raise UserError(f"{key}: '{value}' is outside the data folder; DVC tracks only files below it")
    return found


def _inside(name: str) -> str | None:
    """Normalize a path; returns None if it leaves the data folder."""
    whole = os.path.normpath(name)
    return None if whole.startswith("..") or Path(whole).is_absolute() else whole


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"


def _read(path: Path) -> Any:
    if not path.exists():
        raise UserError(f"{path}: no such file; expected the YAML file of a custom task")
    return parse_yaml(read_text(path), str(path))
