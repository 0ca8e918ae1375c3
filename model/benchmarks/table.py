"""The description of a benchmark, and the benchmarks of the BERT paper, one row of table.yaml each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from model.common.config_base import Settings
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe


class HubFormat(Settings):
    """Alternative files with the same rows, such as Parquet from the hub. Unset columns default to the benchmark's."""

    train: str = ""
    """Training file, or a split of the hub: a path without an extension matches the Parquet files of that split
    (`glue/cola/train`: glue/cola/train-00000-of-00001.parquet, glue/cola/train/0000.parquet and so on)."""
    dev: dict[str, str] = {}
    test: dict[str, str] = {}
    first: str | None = None
    second: str | None = None
    label: str | None = None
    identity: str | None = None
    classes: dict[str, str] = {}
    comes_first: bool = False
    """Prefer this file to the benchmark's default if both exist, because it contains more."""


class Benchmark(Settings):
    """One downstream task: its files, columns, labels, head, metrics and the paper's hyper-parameters.

    The extension of a file determines its format: .tsv (quotes are ordinary characters), .csv, .jsonl, .parquet, .json
    (SQuAD's), .txt and .conll (one word per line).
    """

    name: str
    """Name in code, parameters and on the command line."""
    title: str
    """Name in tables."""
    head: str
    """Key of `HEAD_SPECS`: classes and regression read [CLS], choice compares sequences, span selects two tokens, tags
    labels each word."""
    train: str
    """Training file, relative to the data folder."""
    dev: dict[str, str]
    """Development files by the suffix of their metrics ("" for none). Only the first is required."""
    dev_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of the training rows that form the (fixed) dev split; `dev` then names the training file."""
    test: dict[str, str]
    """Test files by suffix (usually without labels); empty if none are published. Files whose suffix `dev` lacks are
    optional."""
    forms: tuple[HubFormat, ...] = ()
    """Alternatives to the files above, in order of preference."""
    first: str = ""
    """Column of the first text. For tags, the words; for span, the question."""
    second: str | None = None
    """Column of the second text; None for single sentences. For choice, the common beginning of all endings; for span,
    the context."""
    endings: tuple[str, ...] = ()
    """Columns of the endings of a choice; a single column holds lists of endings."""
    label: str = ""
    """Column of the label. For tags, the tags; for span, the answers."""
    answer_start: str | None = None
    """Column of the answer's first character for span, if answers are plain text; defaults to the first occurrence in
    the context."""
    identity: str | None = None
    """Column of the row's id; rows of a file without it are numbered from 0."""
    columns: tuple[str, ...] | None = None
    """Column names of files without a header."""
    labels: tuple[str, ...] = ()
    """Labels as spelled in the files, in the order of the head's outputs."""
    classes: dict[str, str] = {}
    """Names of the file's label numbers, in numeric order, mapped to the labels."""
    positive: str | None = None
    """The label for which F1 is reported."""
    skips_malformed: bool = False
    """Training rows with a wrong number of columns are skipped and counted; published copies contain some."""
    skips_empty: bool = False
    """Training rows with an empty text are skipped and counted; otherwise they are kept and counted."""
    unlabelled: str | None = None
    """A label that means "annotators disagreed"; such training rows are skipped and counted."""
    unanswerable: bool = False
    """True if questions may have no answer (SQuAD v2.0)."""
    metrics: tuple[str, ...]
    """Reported metrics, from 0 to 100, the headline first. The suffix of a dev file is appended to them."""
    paper: dict[str, int | float]
    """The paper's hyper-parameters, by FinetuneRecipe field."""
    grid: dict[str, tuple[int | float, ...]] = Field(default_factory=dict)
    """The grid from which the paper chose the best value on dev."""

    def __hash__(self) -> int:
        return hash((self.name, self.train, self.labels))  # jobs contain rows and are kept in sets

    @property
    def label_names(self) -> dict[str, str]:
        """label → name, for labels that are numbers, such as SST-2's 0 (negative) and 1 (positive)"""
        classes = self.classes or next((form.classes for form in self.forms if form.classes), {})
        names = {label: name for name, label in classes.items() if not name.isdecimal()}
        return {label: names[label] for label in self.labels if label.isdecimal() and label in names}

    def label_name(self, label: str) -> str:
        """Return the name of a label; the label itself if it has none."""
        return self.label_names.get(label, label)

    def label_of(self, name: str) -> str:
        """Return the label of a name; `name` itself if no label has it."""
        return next((label for label, one in self.label_names.items() if one == name), name)

    @property
    def headline(self) -> str:
        """The metric in tables."""
        return self.metrics[0]


_TABLE = yaml.safe_load(Path(__file__).with_name("table.yaml").read_text(encoding="utf-8"))

BENCHMARKS: dict[str, Benchmark] = {row["name"]: Benchmark(**row) for row in _TABLE["benchmarks"]}


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of benchmarks in table order, followed by custom tasks in alphabetical order."""
    known = {name: number for number, name in enumerate(BENCHMARKS)}
    return sorted(names, key=lambda name: (known.get(name, len(known)), name))


def find(name: str) -> Benchmark:
    """Return the benchmark called `name`.

    Raises:
        UserError: there is no such benchmark; the message suggests the nearest name.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    nearest = difflib.get_close_matches(name, BENCHMARKS, n=1, cutoff=0.4)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(BENCHMARKS)}"
    raise UserError(f"unknown benchmark '{name}'; {hint}")


def trained_for(head: Mapping[str, Any], where: str) -> Benchmark:
    """Return the benchmark in the content of a head.json; older versions wrote only its name.

    Raises:
        UserError: the benchmark is unknown or invalid; the message begins with `where`.
    """
    return Benchmark.parse(head["row"], f"{where}: row") if "row" in head else find(head["benchmark"])


def paper_recipe(benchmark: Benchmark) -> FinetuneRecipe:
    return FinetuneRecipe.parse(dict(benchmark.paper), f"the table's row '{benchmark.name}'")
