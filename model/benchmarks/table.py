"""The table of benchmarks: everything in which one downstream task differs from another is a row here.

Hyper-parameters are those of Devlin et al. 2019 (arXiv:1810.04805v2), sections 4.1 to 4.4, 5.3 and appendix
A.3.
"""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import Field

from model.errors import UserError
from model.settings import Settings

Head = Literal["classes", "regression", "choice", "span", "tags"]
Format = Literal["tsv", "csv", "squad", "conll"]


class Benchmark(Settings):
    """One downstream task: its files, columns, labels, head, metrics and the paper's hyper-parameters."""

    name: str
    """The name in code, parameters and on the command line."""
    title: str
    """The name in tables."""
    head: Head
    """What reads the encoder's output: classes and regression read [CLS], choice scores several inputs
    against each other, span points at two tokens, tags labels each word."""
    format: Format
    """The file format."""
    train: str
    """Training file, relative to the data folder."""
    dev: dict[str, str]
    """Development files by the suffix of their metrics ("" for none). The first must be there; others may
    lack."""
    test: dict[str, str]
    """Test files by suffix (their labels are usually withheld); empty where none are published."""
    first: str = ""
    """Column of the first text."""
    second: str | None = None
    """Column of the second text; none for single sentences."""
    label: str = ""
    """Column of the label."""
    identity: str | None = None
    """Column of a row's name; a file without it numbers its rows from 0."""
    columns: tuple[str, ...] | None = None
    """Column names of files that have no header line."""
    labels: tuple[str, ...] = ()
    """Labels as the files spell them, in the order of the head's outputs."""
    positive: str | None = None
    """The label whose F1 is reported."""
    skips_malformed: bool = False
    """Whether training rows with a wrong column count are skipped and counted: copies in the wild have
    some."""
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

    @property
    def headline(self) -> str:
        """The metric that tables print."""
        return self.metrics[0]

    @property
    def num_outputs(self) -> int:
        """Width of the head's output: per sequence, or per token for span and tags."""
        return {"regression": 1, "choice": 1, "span": 2}.get(self.head, len(self.labels))


_GLUE_PAPER: dict[str, int | float] = {
    "batch_size": 32,
    "learning_rate": 3e-5,
    "num_epochs": 3,
    "max_length": 128,
}
_GLUE_GRID: dict[str, tuple[int | float, ...]] = {"learning_rate": (5e-5, 4e-5, 3e-5, 2e-5)}
_SQUAD_PAPER: dict[str, int | float] = {
    "batch_size": 32,
    "learning_rate": 5e-5,
    "num_epochs": 3,
    "max_length": 384,
    "doc_stride": 128,
    "max_query_length": 64,
    "max_answer_length": 30,
    "num_best": 20,
}
_NER_TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")


def _glue(folder: str, **row: Any) -> Benchmark:
    files = {
        "train": f"glue/{folder}/train.tsv",
        "dev": {"": f"glue/{folder}/dev.tsv"},
        "test": {"": f"glue/{folder}/test.tsv"},
    }
    defaults = {"format": "tsv", "head": "classes", "paper": _GLUE_PAPER, "grid": _GLUE_GRID}
    return Benchmark(**{**defaults, **files, "title": folder, "label": "label", "identity": "index", **row})


_ROWS = (
    _glue(
        "CoLA",
        name="cola",
        first="sentence",
        columns=("source", "label", "star", "sentence"),
        labels=("0", "1"),
        metrics=("matthews", "accuracy"),
    ),
    _glue("SST-2", name="sst2", first="sentence", labels=("0", "1"), metrics=("accuracy",)),
    _glue(
        "MRPC",
        name="mrpc",
        first="#1 String",
        second="#2 String",
        label="Quality",
        labels=("0", "1"),
        positive="1",
        metrics=("f1", "accuracy"),
    ),
    _glue(
        "QQP",
        name="qqp",
        first="question1",
        second="question2",
        label="is_duplicate",
        identity="id",
        labels=("0", "1"),
        positive="1",
        skips_malformed=True,
        metrics=("f1", "accuracy"),
    ),
    _glue(
        "STS-B",
        name="stsb",
        head="regression",
        first="sentence1",
        second="sentence2",
        label="score",
        metrics=("spearman", "pearson"),
    ),
    _glue(
        "MNLI",
        name="mnli",
        first="sentence1",
        second="sentence2",
        label="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        skips_malformed=True,
        unlabelled="-",
        dev={"matched": "glue/MNLI/dev_matched.tsv", "mismatched": "glue/MNLI/dev_mismatched.tsv"},
        test={"matched": "glue/MNLI/test_matched.tsv", "mismatched": "glue/MNLI/test_mismatched.tsv"},
        metrics=("accuracy",),
    ),
    _glue(
        "QNLI",
        name="qnli",
        first="question",
        second="sentence",
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
    ),
    _glue(
        "RTE",
        name="rte",
        first="sentence1",
        second="sentence2",
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
    ),
    _glue(
        "WNLI",
        name="wnli",
        first="sentence1",
        second="sentence2",
        labels=("0", "1"),
        metrics=("accuracy",),
    ),
    Benchmark(
        name="squad1",
        title="SQuAD v1.1",
        head="span",
        format="squad",
        train="squad/train-v1.1.json",
        dev={"": "squad/dev-v1.1.json"},
        test={},
        metrics=("f1", "exact"),
        paper=_SQUAD_PAPER,
    ),
    Benchmark(
        name="squad2",
        title="SQuAD v2.0",
        head="span",
        format="squad",
        train="squad/train-v2.0.json",
        dev={"": "squad/dev-v2.0.json"},
        test={},
        unanswerable=True,
        metrics=("f1", "exact"),
        paper={**_SQUAD_PAPER, "batch_size": 48, "num_epochs": 2},
    ),
    Benchmark(
        name="swag",
        title="SWAG",
        head="choice",
        format="csv",
        train="swag/train.csv",
        dev={"": "swag/val.csv"},
        test={"": "swag/test.csv"},
        first="sent1",
        second="sent2",
        label="label",
        identity="",  # pandas wrote SWAG's files: the first column is an index without a name
        labels=("0", "1", "2", "3"),
        metrics=("accuracy",),
        paper={"batch_size": 16, "learning_rate": 2e-5, "num_epochs": 3, "max_length": 128},
    ),
    Benchmark(
        name="ner",
        title="CoNLL-2003 NER",
        head="tags",
        format="conll",
        train="conll2003/train.txt",
        dev={"": "conll2003/valid.txt"},
        test={"": "conll2003/test.txt"},
        labels=_NER_TAGS,
        metrics=("f1", "precision", "recall"),
        paper={"batch_size": 32, "learning_rate": 5e-5, "num_epochs": 4, "max_length": 128},
        grid={"batch_size": (16, 32), "learning_rate": (5e-5, 3e-5, 2e-5), "num_epochs": (2, 3, 4)},
    ),
)

BENCHMARKS: dict[str, Benchmark] = {row.name: row for row in _ROWS}


def find(name: str) -> Benchmark:
    """The row called `name`.

    Raises:
        UserError: there is none; the nearest name is given.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    nearest = difflib.get_close_matches(name, BENCHMARKS, n=1, cutoff=0.4)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(BENCHMARKS)}"
    raise UserError(f"unknown benchmark '{name}'; {hint}")
