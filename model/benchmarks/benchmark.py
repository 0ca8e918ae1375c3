"""What a row of the table of benchmarks holds: everything in which one downstream task differs from another."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from model.common.config_base import Settings

Head = Literal["classes", "regression", "choice", "span", "tags"]


class Form(Settings):
    """Other files that hold the same rows, as the hub's Parquet does. What it leaves out is as in the row."""

    train: str = ""
    """Training file, or a split of the hub: a path without an ending stands for the Parquet files of that split
    (`glue/cola/train`: glue/cola/train-00000-of-00001.parquet, glue/cola/train/0000.parquet and the like)."""
    dev: dict[str, str] = {}
    """Development files or splits by the suffix of their metrics."""
    test: dict[str, str] = {}
    """Test files or splits by suffix."""
    first: str | None = None
    """Column of the first text."""
    second: str | None = None
    """Column of the second text."""
    label: str | None = None
    """Column of the label."""
    identity: str | None = None
    """Column of a row's name."""
    classes: dict[str, str] = {}
    """The names of the file's label numbers, in the order of the numbers, and the row's label for each."""
    comes_first: bool = False
    """Whether it is taken before the row's own file where both are there, since it says more."""


class Benchmark(Settings):
    """One downstream task: its files, columns, labels, head, metrics and the paper's hyper-parameters.

    A file's ending says its format: .tsv (quotes are letters), .csv, .jsonl, .parquet, .json (SQuAD's), .txt and
    .conll (a word per line).
    """

    name: str
    """The name in code, parameters and on the command line."""
    title: str
    """The name in tables."""
    head: Head
    """What reads the encoder's output: classes and regression read [CLS], choice scores several inputs
    against each other, span points at two tokens, tags labels each word."""
    train: str
    """Training file, relative to the data folder."""
    dev: dict[str, str]
    """Development files by the suffix of their metrics ("" for none). The first must be there; others may
    lack."""
    dev_share: float | None = Field(default=None, gt=0, lt=1)
    """This share of the training rows is the development part, always the same ones; `dev` names their file then."""
    test: dict[str, str]
    """Test files by suffix (their labels are usually withheld); empty where none are published. One of a suffix that
    `dev` does not have may lack."""
    forms: tuple[Form, ...] = ()
    """Other files that are looked for, in this order, where those above are not there."""
    first: str = ""
    """Column of the first text; of the words for tags, of the question for span."""
    second: str | None = None
    """Column of the second text; none for single sentences. What all endings begin with for choice, the context for
    span."""
    endings: tuple[str, ...] = ()
    """Columns of the endings of a choice; a single column holds a list of them."""
    label: str = ""
    """Column of the label; of the tags for tags, of the answers for span."""
    answer_start: str | None = None
    """Column of the answer's first character for span, where answers are plain text; without it the first place in
    the context is meant."""
    identity: str | None = None
    """Column of a row's name; a file without it numbers its rows from 0."""
    columns: tuple[str, ...] | None = None
    """Column names of files that have no header line."""
    labels: tuple[str, ...] = ()
    """Labels as the files spell them, in the order of the head's outputs."""
    classes: dict[str, str] = {}
    """The names of the file's label numbers, in the order of the numbers, and the label for each (see `Form`)."""
    positive: str | None = None
    """The label whose F1 is reported."""
    skips_malformed: bool = False
    """Whether training rows with a wrong column count are skipped and counted: copies in the wild have
    some."""
    skips_empty: bool = False
    """Whether training rows with an empty text are skipped and counted; otherwise they are kept and counted."""
    unlabelled: str | None = None
    """A label that says "annotators disagreed": such training rows are skipped and counted."""
    unanswerable: bool = False
    """Whether questions may have no answer (SQuAD v2.0)."""
    metrics: tuple[str, ...]
    """Metrics that are reported, from 0 to 100, the headline first. A suffix of `dev` is appended to them."""
    paper: dict[str, int | float]
    """The paper's hyper-parameters, as keys of FinetuneRecipe."""
    grid: dict[str, tuple[int | float, ...]] = Field(default_factory=dict)
    """The values among which the paper chose the best on dev."""

    def __hash__(self) -> int:
        return hash((self.name, self.train, self.labels))  # jobs carry rows, and stand in sets

    @property
    def headline(self) -> str:
        """The metric that tables print."""
        return self.metrics[0]

    @property
    def num_outputs(self) -> int:
        """Width of the head's output: per sequence, or per token for span and tags."""
        return {"regression": 1, "choice": 1, "span": 2}.get(self.head, len(self.labels))

    @property
    def has_entities(self) -> bool:
        """Whether tags mark entities (IOB2, scored by entity), rather than a class for each word."""
        return self.head == "tags" and "accuracy" not in self.metrics
